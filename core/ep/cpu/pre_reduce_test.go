package cpu_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/inproc"
)

// preReduceTrip dispatches, answers and combines, twice over the same handle, and
// compares with the oracle. Each rank has a shape of its own: ranks may differ in
// whether sums are made first.
func (w *world) preReduceTrip(rank int, s shape, in *input, inPlace bool) error {
	d, err := w.dispatch(rank, s, in)
	if err != nil {
		return err
	}
	y := d.res.CombineX
	if !inPlace {
		y = make([]byte, len(y))
	}
	d.answer(rank, s, y)
	want := s.wantAny(in, alive, func(token int, e int64, h int) float32 { return s.noise(rank, token, e, h) })
	for range 2 {
		out := make([]byte, len(want))
		a := combineArgs(d, in, out)
		a.X, a.ZeroCopy, a.TopK = y, inPlace, s.topk
		if _, err := w.bufs[rank].Combine(d.res.Op, a, ep.PhaseDone, -1); err != nil {
			return err
		}
		if err := differ(s, rank, out, want); err != nil {
			return err
		}
	}
	return nil
}

// preReduceShape draws a shape: bf16 or fp8 rows, bf16 or float32 outputs.
func preReduceShape(r *rand.Rand, ranks int) shape {
	s := randomShape(r, ranks)
	s.fp32 = r.IntN(3) == 0
	if s.fp8 = r.IntN(3) == 0; s.fp8 {
		s.hidden, s.scales = 128, protocol.FP8+protocol.DType(r.IntN(2))
	}
	return s
}

// TestPreReduceExchange compares pre-reduced combines with the definition, while
// some ranks have asked for them and others have not.
func TestPreReduceExchange(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		t.Run(fmt.Sprintf("R%d", ranks), func(t *testing.T) {
			r := seeded(t)
			w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20, Deterministic: ranks == 3})
			for i := range 40 {
				s := preReduceShape(r, ranks)
				ins := inputs(r, s, routings[i%len(routings)])
				asked := r.Uint64() | uint64(i%3-1) // often all of them
				w.each(func(rank int) error {
					one := s
					one.preReduce = asked>>rank&1 == 1
					return w.preReduceTrip(rank, one, &ins[rank], i%2 == 0)
				})
			}
			w.noneDropped()
		})
	}
}

func (w *world) noneDropped() {
	for _, b := range w.bufs {
		require.Zero(w.t, b.Counters().NumMessagesDropped)
	}
}

// TestPreReduceInterleavings: they come in any order, like others.
func TestPreReduceInterleavings(t *testing.T) { interleavings(t, true) }

// TestPreReduceManySelections: K up to 64, of few experts: many of them twice.
func TestPreReduceManySelections(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 4, ep.Config{NumBytes: 64 << 20})
	for i, k := range []int{1, 31, 32, 63, 64, 64} {
		s := shape{ranks: 4, maxTokens: 9, hidden: 16, experts: 4 << i, topk: k, preReduce: true, fp32: i == 4}
		for _, route := range routings {
			ins := inputs(r, s, route)
			w.each(func(rank int) error { return w.preReduceTrip(rank, s, &ins[rank], true) })
		}
	}
	w.noneDropped()
}

// TestPreReduceMasks: a rank that the caller leaves out of the dispatch, or of the
// combine, contributes none of its sum.
func TestPreReduceMasks(t *testing.T) {
	r := seeded(t)
	for range 10 {
		w := newWorld(t, 4, ep.Config{NumBytes: 16 << 20})
		s := shape{ranks: 4, maxTokens: 8, hidden: 16, experts: 8, topk: 4, preReduce: true}
		ins := inputs(r, s, uniform)
		masks, combineMasks := [4][]int32{}, [4][]int32{}
		for rank := range masks {
			masks[rank], combineMasks[rank] = ones(4), ones(4)
			for other := range 4 {
				if other != rank && r.IntN(4) == 0 {
					combineMasks[rank][other] = 0
				}
			}
		}
		out := r.IntN(4) // all others leave this rank out, and it leaves out all others
		for rank := range masks {
			for other := range 4 {
				if (rank == out) != (other == out) {
					masks[rank][other], combineMasks[rank][other] = 0, 0
				}
			}
		}
		w.each(func(rank int) error {
			var d dispatched
			a := w.args(rank, s, &ins[rank], &d)
			a.ActiveRanks = masks[rank]
			if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
				return err
			}
			d.answer(rank, s, d.res.CombineX)
			got := make([]byte, ins[rank].tokens*s.hidden*2)
			c := combineArgs(&d, &ins[rank], got)
			c.ActiveRanks, c.TopK = combineMasks[rank], s.topk
			if _, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
				return err
			}
			dead := func(e int64) bool { return combineMasks[rank][e/2] == 0 }
			return differ(s, rank, got, s.wantPreReduce(&ins[rank], dead, func(token int, e int64, h int) float32 {
				return s.noise(rank, token, e, h)
			}))
		})
		for _, b := range w.bufs {
			require.NoError(t, b.Close())
		}
	}
}

// TestRemotePreReduceChaos: ranks die and come late, and return with updates. The sums
// of lost ranks are missing as a whole.
func TestRemotePreReduceChaos(t *testing.T) { remoteChaos(t, true) }

// TestRemotePreReduceSameBits: a group over several hosts gives every bit that the same
// group on one host gives, which is not always that of the plain sum.
func TestRemotePreReduceSameBits(t *testing.T) {
	r, plain := seeded(t), 0
	for i := range 40 {
		hosts := randomHosts(r)
		s := flatShape{shape: preReduceShape(r, len(hosts.Of))}
		ins := flatInputs(r, s, routings[i%2])
		s.preReduce = true
		want := runOver(t, nil, s, false, ins)
		require.Equal(t, want, runOver(t, &hosts, s, false, ins), "%v on hosts %v", s.shape, hosts.Of)
		if s.preReduce = false; fmt.Sprint(want) == fmt.Sprint(runOver(t, &hosts, s, false, ins)) {
			plain++
		}
	}
	require.Less(t, plain, 40)
}

// TestPreReduceSpecialValues: infinities, NaN and zeros go through a sum as the
// definition says, on one host and on two.
func TestPreReduceSpecialValues(t *testing.T) {
	s := shape{ranks: 2, maxTokens: 4, hidden: 16, experts: 4, topk: 4, preReduce: true}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, of := range []func(int) inproc.Hosts{nil, twoHosts} {
		for _, fp32 := range []bool{false, true} {
			overHosts, s.fp32 = of, fp32
			w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
			overHosts = nil
			for _, weights := range [][]float32{{0, 0, 0, 0}, {inf, 1, -1, 2}, {1, nan, 1, 1}, {3e38, -3e38, 3e38, 1}, {1e-40, 1e-41, -1e-40, 0}} {
				w.each(func(rank int) error {
					in := randomInput(r2(rank), 4, s.hidden, s.topk, s.experts, uniform)
					for i := range in.weights {
						in.weights[i] = weights[i%4]
					}
					return w.preReduceTrip(rank, s, &in, true)
				})
			}
		}
	}
}
