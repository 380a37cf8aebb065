package cuda

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Stats returns this rank's totals, of all operations that the device has ended
// when it is called. ErrClosed after Close.
func (b *Buffer) Stats() (telemetry.Stats, error) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if b.rec.Ended {
		return telemetry.Stats{}, ep.ErrByOwner
	}
	b.fold()
	return b.rec.Area.Stats(b.self, b.ranks), nil
}

// foldNow is fold for a caller that does not hold b.stateMu; ErrClosed after Close.
func (b *Buffer) foldNow() error {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.fold()
	if b.rec.Ended {
		return ep.ErrByOwner
	}
	return nil
}

// Records returns the latest operations of a rank, the oldest first, at most `last` (0:
// all that are remembered). It reads another rank's from that rank's memory; the other
// rank's watcher puts them there some milliseconds after they end.
func (b *Buffer) Records(rank, last int) ([]telemetry.Record, error) {
	if rank < 0 || rank >= b.ranks {
		return nil, ep.Invalid("rank is %d, allowed 0 to %d", rank, b.ranks-1)
	}
	control, err := b.retainControl(rank)
	if control == nil || err != nil {
		return nil, err
	}
	defer control.Release()
	return telemetry.At(control, layout.Record()).Records(last), nil
}

// retainControl keeps a rank's control page mapped. nil: absent.
func (b *Buffer) retainControl(rank int) (domain.Segment, error) {
	b.pages.RLock()
	defer b.pages.RUnlock()
	if err := b.foldNow(); err != nil {
		return nil, err
	}
	control := b.dom.Control(rank)
	if control != nil {
		control.Retain()
	}
	return control, nil
}

// Events returns the events after a sequence number that are still kept, and
// the number of the latest one.
func (b *Buffer) Events(since uint64) ([]telemetry.Event, uint64) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	return b.rec.Events(since)
}

// Counters returns totals of operations that have ended; zeros with
// Config.NoRecord, and after Close.
func (b *Buffer) Counters() ep.Counters {
	out := ep.Counters{NumRowsSentTo: make([]uint64, b.ranks), WaitFor: make([]time.Duration, b.ranks)}
	s, err := b.Stats()
	if err != nil {
		return out
	}
	out.NumDispatches, out.NumCombines = s.Dispatch.Done, s.Combine.Done
	out.NumRowsReceived, out.NumRowsReduced = s.Dispatch.RowsIn, s.Combine.RowsOut
	out.NumBytesPlaced, out.SlabBytes = s.Dispatch.Bytes, s.Memory.SlabBytes
	b.stateMu.Lock()
	out.NumBytesCopied = b.rec.copied
	b.stateMu.Unlock()
	out.NumBytesReduced = s.Combine.Bytes - min(s.Combine.Bytes, out.NumBytesCopied)
	for r := range b.ranks {
		out.NumRowsSentTo[r] = s.RowsTo[r]
		out.NumRowsSent += s.RowsTo[r]
		out.WaitFor[r] = time.Duration(s.Dispatch.WaitFor[r] + s.Combine.WaitFor[r])
		out.Wait += out.WaitFor[r]
	}
	return out
}

// recordLost records the loss of ranks. The caller holds b.stateMu.
func (b *Buffer) recordLost(ranks rankset.Set, now time.Time, why string) {
	for r := range ranks.And(b.rec.known).All() {
		b.rec.Note(b.about(telemetry.Lost, r, b.watch.waited(r, now), why))
	}
	b.rec.known = b.rec.known.Minus(ranks)
}

// recordLeavers records the ranks that the group has lost without this rank's doing.
// The caller holds b.stateMu, and is a member.
func (b *Buffer) recordLeavers(now time.Time, members rankset.Set) {
	gone := b.rec.known.Minus(members)
	left := b.left(gone)
	for r := range left.All() {
		ev := b.about(telemetry.Left, r, 0, ep.WhyLeft)
		ev.Waiting = ""
		b.rec.Note(ev)
	}
	b.rec.known = b.rec.known.Minus(left)
	for r := range gone.Minus(left).All() {
		l, found := b.losses.Find(r, b.detector.Process(r), now)
		if !found {
			l = ep.Loss{Why: ep.WhyLost(b.dom, r, b.detector.Process(r))}
		}
		if l.Asked {
			b.lost++
		}
		b.recordLost(rankset.Of(r), now, l.Why)
	}
}

// fencedFor notes that this rank has taken ranks out. The caller holds b.stateMu.
func (b *Buffer) fencedFor(ranks rankset.Set, now time.Time, why string) {
	b.lost += uint64(ranks.Len())
	b.recordLost(ranks, now, why)
	b.wakeAll()
}

// keepWhy notes why ranks have to go out, and tells the ranks of other hosts before they are asked
// to agree. The caller holds b.stateMu.
func (b *Buffer) keepWhy(ranks rankset.Set, now time.Time, why string) {
	members := membership.Members(b.word.Load())
	for r := range ranks.And(b.rec.known).All() {
		ev := b.about(telemetry.Lost, r, b.watch.waited(r, now), why)
		loss := ep.Loss{
			Why: why, Waiting: ev.Waiting, Op: ev.Op, Waited: time.Duration(ev.WaitedNs),
			Asked: b.dom.Remote() != nil && members.In(b.epoch, r), Until: ep.LateUntil(why, now),
		}
		if b.losses.Keep(r, loss); loss.Asked {
			ep.Explain(b.dom, r, &loss)
		}
	}
}

// left returns those of the ranks that have left the epoch by themselves.
func (b *Buffer) left(ranks rankset.Set) (left rankset.Set) {
	for r := range ranks.All() {
		if area, ok := b.rec.AreaOf(r); ok && area.HasLeft(b.epoch) {
			left = left.With(r)
		}
	}
	return left
}

// recordSlow reports ranks that the device has waited for too long: after SlowAfter,
// then each time the wait has become twice as long. Not without recording.
func (b *Buffer) recordSlow(ranks rankset.Set, now time.Time) {
	if !b.rec.on {
		return
	}
	for r := range ranks.All() {
		is, waited := &b.watch.began[r], b.watch.waited(r, now)
		if waited < max(is.slow, b.cfg.SlowAfter) {
			continue
		}
		is.slow = 2 * waited
		ev := b.about(telemetry.Slow, r, waited, ep.WhyNoData)
		if ev.Waiting == readersName {
			ev.Why = ep.WhyStillOut
		}
		b.rec.Note(ev)
	}
}

// readersName stands for the readers of an earlier combine, which the device waits for.
const readersName = "combine buffer"

// about is an event about a rank, and about the operation under way, or the latest.
func (b *Buffer) about(kind string, rank int, waited time.Duration, why string) telemetry.Event {
	ev := telemetry.Event{
		Kind: kind, Rank: rank, PID: b.rec.PID(rank), Epoch: b.epoch, Waiting: telemetry.Dispatch.String(),
		Op: max(b.engine.Ops(), 1) - 1, WaitedNs: int64(waited), Why: why,
	}
	if b.rec.on {
		if a, ok := b.rec.counters.Current(); ok {
			ev.Op, ev.Waiting = a.Op, kindOf(a.Combine).String()
			if a.Readers {
				ev.Waiting = readersName
			}
		}
	}
	return ev
}

// RecordFallback records that a rank of another host is reached over another carrier than
// before, in the middle of an epoch. It waits for nothing.
func (b *Buffer) RecordFallback(rank int, why string) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.rec.NoteFallback(rank, b.epoch, why)
}

// endObserving comes before the memory that is observed goes away.
func (b *Buffer) endObserving() {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.fold()
	b.rec.Ended = true
}

// knowMembers notes the ranks that may be lost from now on.
func (b *Buffer) knowMembers(set membership.Members) {
	b.rec.known = set.Ranks().Without(b.self)
	b.losses.Reset()
	b.rec.Area.SetEpoch(b.epoch)
}
