package cuda

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/telemetry"
)

// Epoch returns the epoch that this rank has joined.
func (b *Buffer) Epoch() membership.Epoch {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	return b.epoch
}

// NoneHeld returns ep.ErrHeld while every slot is held: rounds of one-way operations need one. An epoch that
// has ended goes before that.
func (b *Buffer) NoneHeld() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	for j := range b.slots {
		if !b.slots[j].held() {
			return nil
		}
	}
	return ep.Held(len(b.slots), len(b.slots), uint64(b.slots[b.pick(true)].handle)-1)
}

// LeaveEpoch ends this rank's part in an epoch, for a caller whose exchange of several operations
// cannot go on: a rank that waits for its next one goes on without it. Calls return why until an
// update. It does nothing once this rank is in another epoch.
func (b *Buffer) LeaveEpoch(epoch membership.Epoch, why error) {
	b.endPart(epoch, func() { b.leaveFor(membership.Updating, why) })
}

// Surrender is LeaveEpoch for a caller that has found rows in this rank's memory which no rank
// sends. Calls return why, an ep.ErrFenced, until an update.
func (b *Buffer) Surrender(epoch membership.Epoch, why error) {
	b.endPart(epoch, func() {
		b.countViolation(b.self)
		b.rec.Note(b.about(telemetry.Lost, b.self, 0, why.Error()))
		b.leaveFor(membership.Fenced, why)
	})
}

// endPart calls leave, with Buffer.stateMu held, if this rank takes part in the epoch.
func (b *Buffer) endPart(epoch membership.Epoch, leave func()) {
	b.drainMessages()
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.checkUsable() == nil && b.epoch == epoch {
		leave()
	}
}
