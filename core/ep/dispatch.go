package ep

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/op"
)

// maxOwed bounds the operations whose words are still owed to somebody.
const maxOwed = 1024

// Dispatch sends this rank's rows and waits for everybody else's, until
// `until` is reached or `slice` has passed (negative: no limit). The pending
// operation is nil when nothing is left to wait for. ErrInvalid, ErrClosed:
// nothing has happened. ErrMismatch: the operation is used up, the buffer is
// not. ErrTimeout, ErrPeerLost, ErrFenced: the buffer is closed.
func (b *Buffer) Dispatch(a *DispatchArgs, res *Result, until Phase, slice time.Duration) (*Pending, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	if err := b.finishCombineInWay(); err != nil {
		return nil, err
	}
	t, err := b.startDispatch(a)
	if err != nil {
		return nil, err
	}
	err = b.drive(t, until, slice)
	return b.outcome(t, until, res, err)
}

// finishCombineInWay completes a combine whose hook has not run when its slot
// is needed: its result was promised to the caller.
func (b *Buffer) finishCombineInWay() error {
	b.mu.Lock()
	s := &b.slots[b.next%uint64(len(b.slots))]
	pending := s.live && s.combine.pending()
	t := b.taskOf(s, kindCombine)
	b.mu.Unlock()
	if !pending {
		return nil
	}
	return b.drive(t, PhaseDone, -1)
}

// startDispatch checks everything, then takes the next operation number.
func (b *Buffer) startDispatch(a *DispatchArgs) (task, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err(); err != nil {
		return task{}, err
	}
	slab, active, err := b.checkDispatch(a)
	if err != nil {
		return task{}, err
	}
	if b.slabBytes == 0 {
		if err := b.sizeFor(slab.Shape); err != nil {
			return task{}, err
		}
	}
	s := &b.slots[b.next%uint64(len(b.slots))]
	b.releaseCombined(nil)
	b.release(s, ErrStaleHandle)
	b.assign(s, a, slab, active)
	return b.taskOf(s, kindDispatch), nil
}

// assign makes the slot the home of the next operation.
func (b *Buffer) assign(s *slot, a *DispatchArgs, slab layout.Slab, active uint64) {
	s.op, s.live = b.next, true
	b.next++
	s.slab = slab
	s.params = params{
		maxTokens: uint64(a.MaxTokens), hidden: uint64(a.Hidden), experts: uint64(a.NumExperts),
		topK: uint64(a.TopK), tokens: uint64(a.NumTokens), fp8: a.FP8, more: a.More,
	}
	s.plan.make(a, int(slab.LocalExperts), active)
	clear(s.dst)
	s.sent, s.broken, s.combines = 0, false, 0
	s.unsent, s.awaited, s.counted = active, active, active
	s.dispatch.begin(a.Timeout)
	s.dispatch.args, s.dispatch.res = *a, Result{}
	s.combine.retire()
	if left := b.all &^ active; left != 0 {
		b.owe(s, left, false)
	}
}

// owe remembers words to be written at owners that have not opened s.op yet.
func (b *Buffer) owe(s *slot, owners uint64, withY bool) {
	b.owed = append(b.owed, owed{op: s.op, owners: owners, params: s.params, slab: s.slab, withY: withY})
}

func (b *Buffer) sizeFor(shape layout.Shape) error {
	size, err := layout.SizeHint(shape, 1)
	if err != nil {
		return invalid("%s", err)
	}
	return b.addSlabs(size)
}

// checkDispatch validates every argument. It changes nothing.
func (b *Buffer) checkDispatch(a *DispatchArgs) (slab layout.Slab, active uint64, err error) {
	if slab, err = b.checkShape(a); err != nil {
		return slab, 0, err
	}
	if active, err = b.activeSet(a.ActiveRanks); err != nil {
		return slab, 0, err
	}
	switch l := int(slab.LocalExperts); {
	case a.NumTokens < 0 || a.NumTokens > a.MaxTokens:
		err = invalid("x has %d tokens, allowed 0 to num_max_tokens_per_rank %d", a.NumTokens, a.MaxTokens)
	case a.TopK < 1 || a.TopK > layout.MaxTopK:
		err = invalid("topk_idx has %d selections per token, allowed 1 to %d", a.TopK, layout.MaxTopK)
	case len(a.X) < a.NumTokens*a.Hidden*2:
		err = invalid("x has %d bytes, %d tokens of hidden %d need %d", len(a.X), a.NumTokens, a.Hidden, a.NumTokens*a.Hidden*2)
	case len(a.TopkIdx) < a.NumTokens*a.TopK:
		err = invalid("topk_idx has %d entries, [%d, %d] needs %d", len(a.TopkIdx), a.NumTokens, a.TopK, a.NumTokens*a.TopK)
	case len(a.RecvCount) < l || len(a.LayoutRange) < l*b.ranks:
		err = invalid("recv_count and layout_range have %d and %d entries, need %d and %d", len(a.RecvCount), len(a.LayoutRange), l, l*b.ranks)
	case len(b.owed) >= maxOwed:
		err = invalid("%d cancelled dispatches still wait for peers, allowed %d", len(b.owed), maxOwed)
	default:
		err = checkExperts(a)
	}
	return slab, active, err
}

func (b *Buffer) checkShape(a *DispatchArgs) (layout.Slab, error) {
	slab, err := layout.Of(layout.Shape{
		MaxTokens: int64(a.MaxTokens), Hidden: int64(a.Hidden),
		NumExperts: int64(a.NumExperts), NumRanks: int64(b.ranks), FP8: a.FP8,
	})
	if err != nil {
		return slab, invalid("%s", err)
	}
	if b.slabBytes != 0 && slab.SizeBytes > b.slabBytes {
		return slab, invalid("num_max_tokens_per_rank %d, hidden %d and num_experts %d need %d bytes per slot, the buffer has %d (num_ep_buffer_bytes, or its first dispatch)",
			a.MaxTokens, a.Hidden, a.NumExperts, slab.SizeBytes, b.slabBytes)
	}
	return slab, nil
}

func checkExperts(a *DispatchArgs) error {
	for i, id := range a.TopkIdx[:a.NumTokens*a.TopK] {
		if id < -1 || id >= int64(a.NumExperts) {
			return invalid("topk_idx[%d, %d] is %d, allowed -1 to %d", i/a.TopK, i%a.TopK, id, a.NumExperts-1)
		}
	}
	return nil
}

// activeSet turns the caller's mask into a bit set. This rank is always in.
func (b *Buffer) activeSet(mask []int32) (uint64, error) {
	if mask == nil {
		return b.all, nil
	}
	if len(mask) < b.ranks {
		return 0, invalid("active_ranks has %d entries, allowed %d and more", len(mask), b.ranks)
	}
	set := uint64(1) << b.self
	for r := range b.ranks {
		if mask[r] != 0 {
			set |= 1 << r
		}
	}
	return set, nil
}

// stepDispatch does what can be done now and returns the ranks it waits for.
func (b *Buffer) stepDispatch(s *slot) (waiting uint64, err error) {
	if s.unsent != 0 {
		if err := b.send(s); err != nil {
			return 0, err
		}
	}
	for rest := s.awaited; rest != 0 && s.isOpen(); rest &= rest - 1 {
		t := bits.TrailingZeros64(rest)
		if layout.IsFor(s.own.Word(layout.Arrive(t)).Load(), s.op) {
			s.awaited &^= 1 << t
		}
	}
	if s.unsent|s.awaited == 0 {
		return 0, b.received(s)
	}
	return s.unsent | s.awaited, nil
}

// received reads what everybody has placed and ends the dispatch.
func (b *Buffer) received(s *slot) error {
	if err := b.agree(s); err != nil {
		b.releaseAs(s, op.Failed, err)
		return err
	}
	a := &s.dispatch.args
	for l := range int(s.slab.LocalExperts) {
		a.RecvCount[l] = int32(s.own.Word(layout.Counter(l)).Load())
		for t := range b.ranks {
			a.LayoutRange[l*b.ranks+t] = 0
			if s.counted>>t&1 == 1 {
				v := s.own.Word(s.slab.Layout(int64(l), int64(t))).Load()
				a.LayoutRange[l*b.ranks+t] = int64(v)
				b.count.rowsReceived += v & (1<<32 - 1)
			}
		}
	}
	b.count.dispatches++
	s.dispatch.args = DispatchArgs{}
	s.dispatch.end(op.Done, nil)
	return nil
}

// agree compares the parameters of every counted source with ours.
func (b *Buffer) agree(s *slot) error {
	s.dispatch.res.PeersHaveMore = false
	for rest := s.counted; rest != 0; rest &= rest - 1 {
		t := bits.TrailingZeros64(rest)
		_, theirs := loadParams(s.own, t)
		if name, mine, other, bad := s.params.differs(&theirs); bad {
			return fmt.Errorf("%w: %s is %v on rank %d and %v on rank %d in the same dispatch", ErrMismatch, name, mine, b.self, other, t)
		}
		s.dispatch.res.PeersHaveMore = s.dispatch.res.PeersHaveMore || theirs.more
	}
	if s.broken {
		return fmt.Errorf("%w: a peer's slot had no room for this rank's rows", ErrMismatch)
	}
	return nil
}
