package cuda

import (
	"fmt"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
)

func nanoseconds(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return int64(d)
}

// Err is what a call would return now, because of what the device or the group have
// done: ErrFenced, ErrMismatch, ErrClosed, ...; nil if calls are possible.
func (b *Buffer) Err() error { return b.usable() }

// usable says why a call cannot begin.
func (b *Buffer) usable() error {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	return b.checkUsable()
}

// checkUsable is usable for a caller that holds b.stateMu.
func (b *Buffer) checkUsable() error {
	if !b.life.IsMember() {
		return b.life.Why()
	}
	if f := b.engine.Failure(); f.Kind == device.FailedWild {
		b.surrender(f)
	} else if f.Kind != 0 {
		b.leaveFor(membership.Failed, b.meaning(f))
	} else if word := b.word.Load(); !membership.Members(word).In(b.epoch, b.self) {
		b.expelled(word)
	}
	return b.life.Why()
}

// meaning translates a failure of the device into an error of core/ep.
func (b *Buffer) meaning(f device.Failure) error {
	kind := ep.ErrClosed
	switch f.Kind {
	case device.FailedExpert, device.FailedCapacity, device.FailedMessage, device.FailedNoRemote, device.FailedRouting, device.FailedWeights:
		kind = ep.ErrInvalid
	case device.FailedMismatch:
		kind = ep.ErrMismatch
	case device.FailedFenced:
		return ep.WhyFenced(b.dom)
	case device.FailedReleased:
		kind = ep.ErrNotCombined
	case device.FailedStale:
		kind = ep.ErrStaleHandle
	case device.FailedProxy:
		if err := b.proxyErr(); err != nil {
			return fmt.Errorf("the device ended the buffer until an update: %w: %w: %w", kind, f, err)
		}
	}
	return fmt.Errorf("the device ended the buffer until an update: %w: %w", kind, f)
}

// expelled notes that this rank is out: its device ends all waits, and writes nothing
// more once the launches that run are over. The watcher waits for that.
func (b *Buffer) expelled(word uint64) {
	b.engine.SetMembers(word)
	b.fenced = fenced{} // this rank may be on the wrong side, and kills no process any more
	b.leave(membership.Fenced, ep.WhyFenced(b.dom))
}

// leaveFor ends this rank's part in its epoch by its own will. The caller holds
// b.stateMu. Handles end with the epoch: no call asks for one before the next. This
// rank leaves before its device is idle. Other ranks may have to go on without it
// first: if they are of this process, the wait cannot tell their launches from its own.
// Until this rank says that it is quiesced, the others do not use a slot again that it
// may write to.
func (b *Buffer) leaveFor(state membership.State, why error) {
	b.engine.SetMembers(b.noMembers())
	b.leave(state, why)
	if state == membership.Updating || state == membership.Closed {
		b.rec.Area.SetLeft(b.epoch)
	}
	membership.Leave(b.word, b.epoch, b.self)
	b.wakeAll()
}

// noMembers is a word of members without this rank.
func (b *Buffer) noMembers() uint64 { return uint64(membership.Full(b.epoch, 0)) }

func (b *Buffer) leave(state membership.State, why error) {
	b.life.Leave(state, why)
	b.watch.pendingQuiesced = true
}

// Abandon is for a caller that has found a defect in the middle of a call. It ends this
// rank's part in its epoch, and calls get why until an update. It does not wait, and
// does nothing to a buffer that is out or closed.
func (b *Buffer) Abandon(why error) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.life.IsMember() {
		b.leaveFor(membership.Failed, why)
	}
}

func (b *Buffer) wakeAll() {
	for r := range b.ranks {
		b.dom.Wake(r)
	}
}
