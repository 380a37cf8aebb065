package cpu

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Stats returns this rank's totals.
func (b *Buffer) Stats() (telemetry.Stats, error) {
	if err := b.enterClosed(); err != nil {
		return telemetry.Stats{}, err
	}
	defer b.users.Done()
	b.mu.Lock()
	b.reportViolations()
	b.mu.Unlock()
	return b.rec.Area.Stats(b.self, b.ranks), nil
}

// Records returns the latest operations of a rank, the oldest first, at most
// `last` (0: all that are remembered). The records of another rank are read from its
// memory: that rank takes no part, and may be frozen or dead.
func (b *Buffer) Records(rank, last int) ([]telemetry.Record, error) {
	if rank < 0 || rank >= b.ranks {
		return nil, ep.Invalid("rank is %d, allowed 0 to %d", rank, b.ranks-1)
	}
	if err := b.enterClosed(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	control := b.retainControl(rank)
	if control == nil {
		return nil, nil
	}
	defer control.Release()
	return telemetry.At(control, layout.Record()).Records(last), nil
}

// retainControl keeps a rank's control page mapped, also when an update of the
// membership replaces the rank meanwhile. nil: absent.
func (b *Buffer) retainControl(rank int) domain.Segment {
	b.mu.Lock()
	defer b.mu.Unlock()
	control := b.dom.Control(rank)
	if control != nil {
		control.Retain()
	}
	return control
}

// Events returns the events after a sequence number that are still kept, and
// the number of the latest one.
func (b *Buffer) Events(since uint64) ([]telemetry.Event, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec.Events(since)
}

// enterClosed is enter for calls that still work on a buffer that a fault has
// closed: they look at what happened. Not after Close.
func (b *Buffer) enterClosed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rec.Ended {
		return ep.ErrClosed
	}
	b.users.Add(1)
	return nil
}

// endObserving is called before Close waits for the users.
func (b *Buffer) endObserving() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.Ended = true
}

// recordLoss records that a rank was given up. Buffer.mu is held.
func (b *Buffer) recordLoss(rank, pid int, epoch membership.Epoch, waited time.Duration, k kind, n uint64, why string) {
	b.rec.Note(telemetry.Event{
		Kind: telemetry.Lost, Rank: rank, PID: pid, Epoch: epoch,
		Waiting: k.String(), Op: n, WaitedNs: int64(waited), Why: why,
	})
}

// recordLost records the loss of several ranks. Buffer.mu is held.
func (b *Buffer) recordLost(ranks rankset.Set, waited time.Duration, t task, why string) {
	for r := range ranks.And(b.known).All() {
		b.recordLoss(r, b.peers[r].Proc.PID(), b.epoch, waited, t.kind, t.n, why)
	}
	b.known = b.known.Minus(ranks)
}

// recordLeavers records the ranks that are out of the group without our doing.
// Buffer.mu is held.
func (b *Buffer) recordLeavers(t task) {
	gone := b.known.And(b.out())
	if gone.Empty() || !b.life.IsMember() {
		return
	}
	b.recordFound(gone, func(l *ep.Loss) bool { return l.Until.IsZero() })
	b.recordLeft(gone.And(b.known))
	b.recordFound(gone, func(*ep.Loss) bool { return true })
	waited := time.Duration(0)
	if d := b.rec.delay(t); d != nil {
		waited = time.Duration(b.rec.Clock.Now() - d.since)
	}
	for r := range gone.And(b.known).All() {
		b.recordLost(rankset.Of(r), waited, t, ep.WhyLost(b.dom, r, b.peers[r].Proc))
	}
}

// keepLoss notes why a rank has to go out, and tells the ranks of other hosts before they are
// asked to agree. Buffer.mu is held.
func (b *Buffer) keepLoss(rank int, loss ep.Loss) {
	loss.Asked = b.dom.Remote() != nil && b.isMemberRank(rank)
	b.losses.Keep(rank, loss)
	if loss.Asked {
		ep.Explain(b.dom, rank, &loss)
	}
}

// recordFound records those of the ranks of which this rank has found such a reason itself.
// Buffer.mu is held.
func (b *Buffer) recordFound(gone rankset.Set, such func(*ep.Loss) bool) {
	now := b.now()
	for r := range gone.And(b.known).All() {
		l, found := b.losses.Find(r, b.peers[r].Proc, now)
		if !found || !such(&l) {
			continue
		}
		if b.known = b.known.Without(r); l.Asked {
			b.lost.Add(1)
		}
		b.rec.Note(telemetry.Event{
			Kind: telemetry.Lost, Rank: r, PID: b.rec.PID(r), Epoch: b.epoch,
			Waiting: l.Waiting, Op: l.Op, WaitedNs: int64(l.Waited), Why: l.Why,
		})
	}
}

// recordLeft records those of the ranks that have left by themselves: they live, and
// are done with the epoch. Buffer.mu is held.
func (b *Buffer) recordLeft(gone rankset.Set) {
	for r := range gone.All() {
		if p := &b.peers[r]; p.Ended(b.epoch) && !p.Proc.Dying() {
			b.known = b.known.Without(r)
			b.rec.Note(telemetry.Event{
				Kind: telemetry.Left, Rank: r, PID: p.Proc.PID(), Epoch: b.epoch, Op: b.next,
				Why: ep.WhyLeft,
			})
		}
	}
}

// RecordFallback records that a rank of another host is reached over another carrier than
// before, in the middle of an epoch. It waits for nothing.
func (b *Buffer) RecordFallback(rank int, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rec.NoteFallback(rank, b.epoch, why)
}

// watchSlow makes an event of the ranks for which an operation has waited too long:
// after SlowAfter, then each time the wait has become twice as long. Buffer.mu
// is held.
func (b *Buffer) watchSlow(t task, now time.Time) {
	d := b.rec.delay(t)
	if d == nil {
		return
	}
	waited := b.rec.Clock.At(now) - d.since
	if waited < d.slow {
		return
	}
	d.slow = 2 * waited
	why := ep.WhyNoData
	if t.kind == kindReaders {
		why = ep.WhyStillOut
	}
	for rank := range d.missing.All() {
		b.rec.Note(telemetry.Event{
			Kind: telemetry.Slow, Rank: rank, PID: b.rec.PID(rank), Epoch: b.epoch,
			Waiting: t.kind.String(), Op: t.n, WaitedNs: waited, Why: why,
		})
	}
}

// complain is watchSlow for a wait that is about to sleep.
func (w *wait) complain(now time.Time) {
	w.b.mu.Lock()
	defer w.b.mu.Unlock()
	w.b.watchSlow(w.t, now)
}
