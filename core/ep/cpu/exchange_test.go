package cpu_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
)

func randomShape(r *rand.Rand, ranks int) shape {
	return shape{
		ranks: ranks, maxTokens: 1 + r.IntN(24), hidden: 8 * (1 + r.IntN(8)),
		experts: ranks * (1 + r.IntN(6)), topk: 1 + r.IntN(8),
	}
}

// TestExchange compares dispatch and combine with the oracle, on random
// shapes, routings and token counts, several operations per buffer.
func TestExchange(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprintf("R%d", ranks), func(t *testing.T) {
			r := seeded(t)
			w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20})
			for i := range 60 {
				s := randomShape(r, ranks)
				ins := inputs(r, s, routings[i%len(routings)])
				w.each(func(rank int) error { return w.roundTrip(rank, s, ins) })
			}
		})
	}
}

func (w *world) roundTrip(rank int, s shape, ins []input) error {
	d, err := w.dispatch(rank, s, &ins[rank])
	if err != nil {
		return err
	}
	if err := d.check(rank, s, ins); err != nil {
		return err
	}
	d.compute(rank, s)
	return w.combineAndCheck(rank, s, ins, d)
}

func (w *world) combineAndCheck(rank int, s shape, ins []input, d *dispatched) error {
	out, err := w.combine(rank, s, &ins[rank], d)
	if err != nil {
		return err
	}
	if want := s.want(&ins[rank], alive); !bytes.Equal(out, want) {
		return fmt.Errorf("%v: combine differs from the oracle", s)
	}
	return nil
}

// TestInterleavings runs random sequences of dispatches, combines, repeated
// combines and abandoned dispatches, with ranks delayed at random.
func TestInterleavings(t *testing.T) { interleavings(t, false) }

func interleavings(t *testing.T, preReduce bool) {
	pairs := 400
	if testing.Short() {
		pairs = 100
	}
	for _, ranks := range []int{2, 4} {
		for _, slots := range []int{2, 3} {
			t.Run(fmt.Sprintf("R%d-S%d", ranks, slots), func(t *testing.T) {
				r := seeded(t)
				w := newWorld(t, ranks, ep.Config{NumSlots: slots, NumBytes: 64 << 20})
				s := shape{ranks: ranks, maxTokens: 12, hidden: 16, experts: 4 * ranks, topk: 3, preReduce: preReduce}
				script := randomScript(r, s, pairs)
				seeds := r.Uint64()
				w.each(func(rank int) error {
					return w.play(rank, s, script, rand.New(rand.NewPCG(seeds, uint64(rank))))
				})
			})
		}
	}
}

// act is one step of a script that all ranks play.
type act struct {
	ins     []input
	pattern int
}

const (
	patternDC   = iota // d c
	patternDDCC        // d d c c
	patternDCC         // d c c
	patternD           // d, never combined, released by the next dispatches
	patternDR          // d, released explicitly
	numPatterns
)

func randomScript(r *rand.Rand, s shape, n int) []act {
	script := make([]act, n)
	for i := range script {
		script[i] = act{ins: inputs(r, s, routings[r.IntN(len(routings))]), pattern: r.IntN(numPatterns)}
	}
	return script
}

func (w *world) play(rank int, s shape, script []act, r *rand.Rand) error {
	for i, a := range script {
		if r.IntN(20) == 0 {
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		}
		if err := w.playOne(rank, s, a); err != nil {
			return fmt.Errorf("step %d, pattern %d: %w", i, a.pattern, err)
		}
	}
	return nil
}

func (w *world) playOne(rank int, s shape, a act) error {
	first, err := w.dispatch(rank, s, &a.ins[rank])
	if err != nil {
		return err
	}
	if err := first.check(rank, s, a.ins); err != nil {
		return err
	}
	first.compute(rank, s)
	switch a.pattern {
	case patternD:
		return nil
	case patternDR:
		return w.bufs[rank].Release(first.res.Op)
	case patternDDCC:
		second, err := w.dispatch(rank, s, &a.ins[rank])
		if err != nil {
			return err
		}
		second.compute(rank, s)
		if err := w.combineAndCheck(rank, s, a.ins, first); err != nil {
			return err
		}
		return w.combineAndCheck(rank, s, a.ins, second)
	case patternDCC:
		if err := w.combineAndCheck(rank, s, a.ins, first); err != nil {
			return err
		}
	}
	return w.combineAndCheck(rank, s, a.ins, first)
}

// TestSameBitsForEveryR: the same tokens and experts give the same bits
// however many ranks share them.
func TestSameBitsForEveryR(t *testing.T) {
	r := seeded(t)
	const tokens, hidden, experts, k = 16, 32, 8, 4
	in := randomInput(r, tokens, hidden, k, experts, uniform)
	want := wantCombine(&in, hidden, k, alive)
	for _, ranks := range []int{1, 2, 4, 8} {
		w := newWorld(t, ranks, ep.Config{})
		s := shape{ranks: ranks, maxTokens: tokens, hidden: hidden, experts: experts, topk: k}
		ins := make([]input, ranks) // every rank has its share of the tokens
		for i := range ins {
			lo, hi := i*tokens/ranks, (i+1)*tokens/ranks
			ins[i] = input{tokens: hi - lo, x: in.x[lo*hidden*2 : hi*hidden*2], topk: in.topk[lo*k : hi*k], weights: in.weights[lo*k : hi*k]}
		}
		got := make([][]byte, ranks)
		w.each(func(rank int) (err error) {
			d, err := w.dispatch(rank, s, &ins[rank])
			if err != nil {
				return err
			}
			d.compute(rank, s)
			got[rank], err = w.combine(rank, s, &ins[rank], d)
			return err
		})
		require.Equal(t, want, bytes.Join(got, nil), "R = %d", ranks)
	}
}
