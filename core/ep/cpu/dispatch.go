package cpu

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/op"
)

// maxDeferred bounds the operations with words that are still to be written.
const maxDeferred = 1024

// Dispatch sends this rank's rows and waits for the rows of all other ranks, until
// `until` is reached or `slice` has passed (negative: no limit). The pending
// operation is nil when nothing is left to wait for. ErrInProgress without a
// pending operation: a combine with a hook that has not run occupies the slot and is
// not done yet. Nothing has happened, call again.
//
// A rank that is late beyond the deadline, or whose process ends, is taken out
// of the group; the call goes on without it and shows it in ActiveRanks.
//
// ErrInvalid, ErrHeld, ErrClosed: nothing has happened. ErrMismatch: the operation is
// used up, the buffer is still usable. ErrStaleHandle: another thread's dispatch took
// the slot. ErrFenced: the others took this rank out.
func (b *Buffer) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (*Pending, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	limit := b.limitOf(slice)
	for {
		t, inWay, err := b.startDispatch(a)
		if err != nil {
			return nil, err
		}
		if !inWay {
			err = b.drive(t, until, limit)
			return b.outcome(t, res, err)
		}
		if err := b.clear(t, limit); err != nil {
			return nil, err
		}
	}
}

// clear drives an operation that occupies the slot to its end. The operation's own waiters
// get its error; only a broken buffer or the limit stops the caller.
func (b *Buffer) clear(t task, limit time.Time) error {
	err := b.drive(t, ep.PhaseDone, limit)
	b.drop(t)
	if err == ep.ErrInProgress {
		return err
	}
	return b.err()
}

// startDispatch checks everything, then takes the next operation number. When
// the slot holds a combine with a promised result, it takes nothing and
// returns that combine.
func (b *Buffer) startDispatch(a *ep.DispatchArgs) (t task, inWay bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin(); err != nil {
		return task{}, false, err
	}
	slab, active, err := b.checkDispatch(a)
	if err != nil {
		return task{}, false, err
	}
	s := &b.slots[b.next%uint64(len(b.slots))]
	if a.KeepHeld && s.held() {
		return task{}, false, ep.Held(b.numHeld(), len(b.slots), s.op)
	}
	if b.slabBytes == 0 {
		if err := b.sizeFor(slab.Shape); err != nil {
			return task{}, false, err
		}
	}
	if s.live && s.combine.pending() {
		return b.hold(s, kindCombine), true, nil
	}
	b.releaseCombined(nil)
	b.release(s, ep.ErrStaleHandle)
	b.assign(s, a, slab, active)
	return b.hold(s, kindDispatch), false, nil
}

// begin does what every call does first.
func (b *Buffer) begin() error {
	if err := b.usable(); err != nil {
		return err
	}
	return b.progress()
}

// assign gives the slot to the next operation. Ranks that are out
// get and give nothing; members that the caller leaves out still get words.
func (b *Buffer) assign(s *slot, a *ep.DispatchArgs, slab *layout.Slab, active rankset.Set) {
	members := b.members()
	left := members.Minus(active)
	active = active.And(members)
	s.op, s.live = b.next, true
	b.next++
	s.slab = *slab
	s.params = params{
		maxTokens: uint64(a.MaxTokens), hidden: uint64(a.Hidden), experts: uint64(a.NumExperts),
		topK: uint64(a.TopK), tokens: uint64(a.NumTokens), hasMore: a.HasMore,
		rowType: a.RowType, outputType: a.OutputType, use: a.Use, flat: a.Flat, noRouting: a.NoRouting, extra: packExtra(a),
		preReduce: a.PreReduce,
	}
	b.rec.begin(s, kindDispatch)
	b.plan(s, a, active)
	if a.PreReduce {
		s.weights = append(s.weights[:0], a.TopkWeights[:a.NumTokens*a.TopK]...)
	}
	clear(s.dst)
	s.sent, s.placed, s.located, s.combines = rankset.Set{}, rankset.Set{}, false, 0
	s.lacks, s.spoiled = s.lacks[:0], rankset.Set{}
	s.notified, s.ordered, s.rows = rankset.Set{}, false, 0
	s.planned, s.unsent, s.awaited, s.counted = active, active, active, active
	s.dispatch.begin(a.Timeout)
	s.dispatch.args, s.dispatch.res = *a, ep.Result{}
	s.combine.retire()
	if !left.Empty() {
		b.deferWrites(s, left, false)
	}
}

// deferWrites remembers words to be written at owners that have not opened s.op yet.
func (b *Buffer) deferWrites(s *slot, owners rankset.Set, withY bool) {
	b.deferred = append(b.deferred, deferredWrite{op: s.op, owners: owners, params: s.params, slab: s.slab, withY: withY})
}

func (b *Buffer) sizeFor(shape layout.Shape) error {
	size, err := layout.SizeHint(shape, 1)
	if err != nil {
		return ep.Invalid("%s", err)
	}
	return b.addSlabs(size)
}

// checkDispatch validates every argument. It changes nothing.
func (b *Buffer) checkDispatch(a *ep.DispatchArgs) (slab *layout.Slab, active rankset.Set, err error) {
	if slab, err = b.checkShape(a); err != nil {
		return slab, rankset.Set{}, err
	}
	if active, err = b.activeSet(a.ActiveRanks); err != nil {
		return slab, rankset.Set{}, err
	}
	if err = b.checkRemote(slab, a); err != nil {
		return slab, rankset.Set{}, err
	}
	switch l := int(slab.LocalExperts); {
	case a.NumTokens < 0 || (a.NumTokens > a.MaxTokens && !a.Use.OneWay()):
		err = ep.Invalid("x has %d tokens, allowed 0 to num_max_tokens_per_rank %d", a.NumTokens, a.MaxTokens)
	case !limits.TopK.Has(int64(a.TopK)):
		err = checkTopK(a.TopK)
	case !limits.Selections.Has(int64(a.NumRouted()) * int64(a.TopK)):
		err = ep.Invalid("topk_idx is [%d, %d], allowed at most %d selections", a.NumRouted(), a.TopK, limits.Selections.Most)
	case len(a.X) < a.NumTokens*a.Hidden*2:
		err = ep.Invalid("x has %d bytes, %d tokens of hidden %d need %d", len(a.X), a.NumTokens, a.Hidden, a.NumTokens*a.Hidden*2)
	case len(a.TopkIdx) < a.NumRouted()*a.TopK:
		err = ep.Invalid("topk_idx has %d entries, [%d, %d] needs %d", len(a.TopkIdx), a.NumRouted(), a.TopK, a.NumRouted()*a.TopK)
	case len(a.RecvCount) < l || len(a.LayoutRange) < l*b.ranks:
		err = ep.Invalid("recv_count and layout_range have %d and %d entries, need %d and %d", len(a.RecvCount), len(a.LayoutRange), l, l*b.ranks)
	case len(b.deferred) >= maxDeferred:
		err = ep.Invalid("%d cancelled dispatches still wait for peers, allowed %d", len(b.deferred), maxDeferred)
	default:
		if err = checkColumns(a); err == nil {
			err = checkExperts(a)
		}
		if err == nil && (a.Use.OneWay() || a.Listed != nil) {
			err = b.checkOneWay(a)
		}
	}
	return slab, active, err
}

// checkShape returns the slab of the shape that is asked for, until the next
// call.
func (b *Buffer) checkShape(a *ep.DispatchArgs) (*layout.Slab, error) {
	if !a.NoRouting && a.Flat && !limits.TopK.Has(int64(a.TopK)) {
		return nil, checkTopK(a.TopK) // their width would be refused, less clearly
	}
	shape := layout.Shape{
		MaxTokens: int64(a.MaxTokens), Hidden: int64(a.Hidden),
		NumExperts: int64(a.NumExperts), NumRanks: int64(b.ranks),
		RowType: a.RowType, OutputType: a.OutputType,
		Flat: a.Flat, OneWay: a.Use.OneWay(), Columns: layout.Widths(a.Flat && !a.NoRouting, a.TopK, a.ExtraRowBytes),
	}
	slab := &b.asked
	if shape != slab.Shape { // mostly it is that of the call before
		of, err := layout.Of(shape)
		if err != nil {
			return nil, ep.Invalid("%s", err)
		}
		*slab = of
	}
	if b.slabBytes != 0 && slab.SizeBytes > b.slabBytes {
		return nil, ep.Invalid("num_max_tokens_per_rank %d, hidden %d and num_experts %d with %s outputs need %d bytes per slot, the buffer has %d (num_ep_buffer_bytes, or its first dispatch)",
			a.MaxTokens, a.Hidden, a.NumExperts, a.OutputType, slab.SizeBytes, b.slabBytes)
	}
	return slab, nil
}

func checkTopK(k int) error { return ep.InRange(limits.TopK, k) }

func checkExperts(a *ep.DispatchArgs) error {
	for i, id := range a.TopkIdx[:a.NumRouted()*a.TopK] {
		if id < -1 || id >= int64(a.NumExperts) {
			return ep.Invalid("topk_idx[%d, %d] is %d, allowed -1 to %d", i/a.TopK, i%a.TopK, id, a.NumExperts-1)
		}
	}
	return nil
}

// activeSet turns the caller's mask into a set. This rank is always in.
func (b *Buffer) activeSet(mask []int32) (rankset.Set, error) {
	if mask == nil {
		return b.all, nil
	}
	if len(mask) < b.ranks {
		return rankset.Set{}, ep.Invalid("active_ranks has %d entries, allowed %d and more", len(mask), b.ranks)
	}
	set := rankset.Of(b.self)
	for r := range b.ranks {
		if mask[r] != 0 {
			set = set.With(r)
		}
	}
	return set, nil
}

// stepDispatch does what can be done now and returns the ranks it waits for:
// those that still hold our slab, those that have not opened theirs, and, once
// ours is open, those that have not sent their rows.
func (b *Buffer) stepDispatch(s *slot) (waiting rankset.Set, err error) {
	out := b.outWithLast()
	if out.Has(b.self) {
		return rankset.Set{}, ep.ErrFenced // else we would go on without our own rows
	}
	s.unsent = s.unsent.Minus(out)
	if !s.unsent.Empty() {
		if err := b.send(s); err != nil {
			return rankset.Set{}, err
		}
	}
	if s.unsent.Empty() && !s.located {
		b.finishSend(s)
	}
	if !s.isOpen() {
		return b.unfinished(s).Or(s.unsent).Minus(out).Without(b.self), nil
	}
	b.countArrivals(s, out)
	if s.unsent.Or(s.awaited).Empty() {
		return rankset.Set{}, b.received(s)
	}
	return s.unsent.Or(s.awaited).Without(b.self), nil
}

// countArrivals looks which sources have arrived. If a source is out, its rows count when
// they are complete; else the source is dropped for this operation.
func (b *Buffer) countArrivals(s *slot, out rankset.Set) {
	for t := range s.awaited.All() {
		switch {
		case b.arrived(s, t):
			s.awaited = s.awaited.Without(t)
		case out.Has(t):
			s.awaited = s.awaited.Without(t)
			s.counted = s.counted.Without(t)
		case !b.exchanges(s) && b.cameFor(s, layout.Announced(t), t, s.op):
			b.refuseRowOrder(s.own, s.op) // its rows are flat, ours are not: it would wait for ever
			b.dom.Wake(t)
		}
	}
}

func (b *Buffer) arrived(s *slot, t int) bool {
	return b.cameFor(s, layout.Arrive(t), t, s.op)
}

// showActive clears the ranks in the caller's mask that its result lacks.
func showActive(mask []int32, lacking rankset.Set) {
	if mask == nil {
		return
	}
	for r := range lacking.All() {
		mask[r] = 0
	}
}

// received reads what every rank has placed and ends the dispatch.
func (b *Buffer) received(s *slot) error {
	if err := b.agree(s); err != nil {
		b.releaseAs(s, op.Failed, err) // nothing is left to release if this rank is out
		return err
	}
	if err := b.takeCounts(s); err != nil {
		return err
	}
	a := &s.dispatch.args
	showActive(a.ActiveRanks, b.all.Minus(s.counted))
	b.rec.seen(s, kindDispatch)
	b.count.dispatches++
	s.dispatch.args = ep.DispatchArgs{}
	s.dispatch.end(op.Done, nil)
	return nil
}

// agree compares the parameters of every source that has sent with ours. It includes
// sources that are not counted, because their rows lie in the same slab.
func (b *Buffer) agree(s *slot) error {
	s.dispatch.res.PeersHaveMore = false
	for t := range b.ranks {
		if !b.arrived(s, t) {
			continue
		}
		theirs, ok := b.paramsOf(s, t)
		if !ok {
			return b.surrender()
		}
		if name, mine, other, bad := s.params.differs(&theirs); bad {
			return fmt.Errorf("%w: %s is %v on rank %d and %v on rank %d in the same %s", ep.ErrMismatch, name, mine, b.self, other, t, s.params.use)
		}
		if s.counted.Has(t) && theirs.hasMore {
			s.dispatch.res.PeersHaveMore = true
		}
	}
	return b.agreeOnCapacity(s)
}
