package cpu_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// inRankOrder checks that the rows of every expert lie in order of rank.
func (d *dispatched) inRankOrder(s shape) error {
	for e := range s.experts / s.ranks {
		next := int64(0)
		for src := range s.ranks {
			word := d.layout[e*s.ranks+src]
			if n := word & (1<<32 - 1); n > 0 {
				if word>>32 < next {
					return fmt.Errorf("expert %d: rows of rank %d begin at %d, after %d", e, src, word>>32, next)
				}
				next = word>>32 + n
			}
		}
	}
	return nil
}

// TestDeterministicOrder: rows of an expert lie in order of rank, with every
// pattern of calls, and the values are what they always are.
func TestDeterministicOrder(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		r := seeded(t)
		w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20, Deterministic: true})
		for i := range 40 {
			s := randomShape(r, ranks)
			ins := inputs(r, s, routings[i%len(routings)])
			w.each(func(rank int) error {
				if rank == i%ranks {
					time.Sleep(time.Millisecond) // else rank 0 tends to be first
				}
				d, err := w.dispatch(rank, s, &ins[rank])
				if err != nil {
					return err
				}
				if err := d.inRankOrder(s); err != nil {
					return err
				}
				if err := d.check(rank, s, ins); err != nil {
					return err
				}
				d.compute(rank, s)
				return w.combineAndCheck(rank, s, ins, d)
			})
		}
		s := shape{ranks: ranks, maxTokens: 12, hidden: 16, experts: 4 * ranks, topk: 3}
		script := randomScript(r, s, 60)
		w.each(func(rank int) error { return w.play(rank, s, script, r2(rank)) })
	}
}

// TestDeterministicOrderWithLosses: a rank that dies has no place, or a hole.
func TestDeterministicOrderWithLosses(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20, Deterministic: true})
	w.deterministic = true
	for range 5 {
		w.exchangeAll(trio, rankset.Upto(3))
		inproc.Kill(w.doms[0], 1)
		w.exchangeAll(trio, rankset.Of(0, 2))
		w.meet(rankset.Upto(3), rankset.Of(1))
	}
}

// TestOrderOfDifferentShapes: ranks that disagree are told, and go on.
func TestOrderOfDifferentShapes(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, Deterministic: true})
	for range 3 {
		w.each(func(r int) error {
			s := pair
			s.maxTokens += r
			in := pairInput(r)
			_, err := w.dispatch(r, s, &in)
			require.ErrorIs(t, err, ep.ErrMismatch)
			return nil
		})
		w.exchangeAll(pair, rankset.Of(0, 1))
	}
}
