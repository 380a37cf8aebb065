package cpu_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// sameRouting is an input with a former input's routing: other rows and weights,
// and ids in memory of their own.
func sameRouting(r *rand.Rand, s flatShape, former []flatInput) []flatInput {
	ins := make([]flatInput, len(former))
	for i := range ins {
		fixed := 0
		route := func(*rand.Rand, int, int) []int64 {
			ids := former[i].topk[fixed : fixed+s.topk]
			fixed += s.topk
			return ids
		}
		ins[i].input = randomInput(r, former[i].tokens, s.hidden, s.topk, s.experts, route)
		for e, width := range s.extra {
			ins[i].extra[e] = bytes.Repeat([]byte{byte(r.Uint32())}, former[i].tokens*width)
		}
	}
	return ins
}

func packedOf(ins []flatInput) (packed []input) {
	for i := range ins {
		packed = append(packed, ins[i].input)
	}
	return packed
}

// TestKnownPlan: operations with a known plan have the results of the oracle,
// in both forms, and the plan is in fact not made again.
func TestKnownPlan(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 8} {
		for _, deterministic := range []bool{false, true} {
			t.Run(fmt.Sprintf("R%d-deterministic=%v", ranks, deterministic), func(t *testing.T) {
				r := seeded(t)
				w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20, DebugFill: true, Deterministic: deterministic})
				for i := range 20 {
					s := randomFlatShape(r, ranks)
					s.fp32 = s.fp32 && i%2 == 0
					ins := flatInputs(r, s, routings[i%len(routings)])
					kept := w.plansKept()
					for range 4 {
						w.each(func(rank int) error {
							if i%2 == 0 {
								return w.flatTrip(rank, s, ins, true)
							}
							return w.roundTrip(rank, s.shape, packedOf(ins))
						})
						ins = sameRouting(r, s, ins)
					}
					for rank, n := range w.plansKept() {
						require.GreaterOrEqual(t, n-kept[rank], uint64(3), "rank %d", rank)
					}
				}
			})
		}
	}
}

func (w *world) plansKept() (n []uint64) {
	for _, b := range w.bufs {
		n = append(n, cpu.PlansKept(b))
	}
	return n
}

// TestKnownPlanBesideItsOwn: the operation that the plan was made for is still to be
// combined, before or after the operation that has taken the plan over.
func TestKnownPlanBesideItsOwn(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		for _, deterministic := range []bool{false, true} {
			r := seeded(t)
			w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20, Deterministic: deterministic})
			for i := range 30 {
				s := flatShape{shape: trio}
				first := flatInputs(r, s, routings[i%len(routings)])
				both := [2][]flatInput{first, sameRouting(r, s, first)}
				w.each(func(rank int) error { return w.twoAtOnce(rank, s, both, order, i%2 == 0) })
			}
			require.NotContains(t, w.plansKept(), uint64(0))
		}
	}
}

// twoAtOnce dispatches two operations, then combines them in the given order.
func (w *world) twoAtOnce(rank int, s flatShape, both [2][]flatInput, order [2]int, flat bool) (err error) {
	var ds [2]*dispatched
	for i := range ds {
		if flat {
			ds[i], err = w.dispatchFlat(rank, s, &both[i][rank])
		} else {
			ds[i], err = w.dispatch(rank, s.shape, &both[i][rank].input)
		}
		if err != nil {
			return err
		}
	}
	var outs [2][]byte
	for _, i := range order {
		in := &both[i][rank]
		var a *ep.CombineArgs
		if flat {
			rows, err := ds[i].checkFlat(rank, s, both[i], nobody)
			if err != nil {
				return err
			}
			a = flatCombineArgs(ds[i], s, in, ds[i].computeFlat(rank, s, rows, ds[i].res.CombineX), true)
		} else {
			if err := ds[i].check(rank, s.shape, packedOf(both[i])); err != nil {
				return err
			}
			ds[i].compute(rank, s.shape)
			a = combineArgs(ds[i], &in.input, make([]byte, in.tokens*s.hidden*2))
			a.TopK = s.topk
		}
		if _, err := w.bufs[rank].Combine(ds[i].res.Op, a, ep.PhaseDone, -1); err != nil {
			return err
		}
		outs[i] = a.Out
	}
	for i, out := range outs {
		want := wantCombine(&both[i][rank].input, s.hidden, s.topk, alive)
		if flat {
			want = wantFlat(&both[i][rank], s, nobody)
		}
		if !bytes.Equal(out, want) {
			return fmt.Errorf("rank %d: operation %d of two differs from the oracle", rank, i)
		}
	}
	return nil
}

// TestChangedRouting: a caller may write other ids where those of the dispatch
// before lay, or let the same ids mean other experts or other tokens.
func TestChangedRouting(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 3, ep.Config{NumBytes: 64 << 20})
	for range 20 {
		ins := flatInputs(r, flatTrio, uniform)
		w.each(func(rank int) error { return w.flatTrip(rank, flatTrio, ins, true) })
		for i := range ins {
			if n := ins[i].tokens; n > 0 {
				copy(ins[i].topk[(n-1)*flatTrio.topk:], someMissing(r, flatTrio.topk, flatTrio.experts))
			}
		}
		w.each(func(rank int) error { return w.flatTrip(rank, flatTrio, ins, true) })
		more := flatTrio // the same ids on other ranks
		more.experts *= 4
		w.each(func(rank int) error { return w.flatTrip(rank, more, ins, true) })
		other := flatTrio // [T, K] becomes [T*K, 1]
		other.maxTokens, other.topk, other.noRouting = flatTrio.maxTokens*flatTrio.topk, 1, true
		other.extra = flatShape{}.extra
		w.each(func(rank int) error {
			fp32 := make([]flatInput, len(ins))
			for i := range ins {
				fp32[i].input = randomInput(r2(i), ins[i].tokens*flatTrio.topk, other.hidden, 1, other.experts, uniform)
				copy(fp32[i].topk, ins[i].topk)
			}
			return w.flatTrip(rank, other, fp32, true)
		})
	}
}

// TestKnownPlanAfterALoss: the ranks that get rows are part of a plan. A rank that is
// lost, or left out, or has come back, makes another plan necessary.
func TestKnownPlanAfterALoss(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20})
	ins := flatInputs(r, flatTrio, uniform)
	repeat := func(ranks rankset.Set) {
		for range 3 {
			ins = sameRouting(r, flatTrio, ins)
			w.some(ranks, func(rank int) error {
				return w.flatExchange(rank, flatTrio, ins, ones(3), 20*time.Second)
			})
			w.some(ranks, func(rank int) error {
				_, err := w.exchange(rank, trio, packedOf(ins), 20*time.Second)
				return err
			})
		}
	}
	for range 3 {
		repeat(rankset.Upto(3))
		inproc.Kill(w.doms[0], 2)
		repeat(rankset.Of(0, 1))
		w.meet(rankset.Upto(3), rankset.Of(2))
	}
	repeat(rankset.Upto(3))
	kept := w.plansKept()
	masks := [][]int32{{1, 1, 0}, {1, 1, 0}, {0, 0, 1}}
	w.each(func(rank int) error { return w.flatExchange(rank, flatTrio, ins, masks[rank], -1) })
	require.Equal(t, kept, w.plansKept(), "a mask is another plan")
}
