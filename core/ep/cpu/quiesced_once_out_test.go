package cpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
)

// slabWatch does something once, when a peer's slab is fetched: that is between
// the look at its open word and the first write.
type slabWatch struct {
	domain.Domain
	act func()
}

func (d *slabWatch) Slab(rank, id int) (domain.Segment, error) {
	if act := d.act; act != nil && rank != d.Rank() {
		d.act = nil
		act()
	}
	return d.Domain.Slab(rank, id)
}

// TestQuiescedOnceOut: a rank that is taken out between its look at open and its
// first write writes nothing, neither rows nor what it has deferred. The owner may have
// opened without this rank, and then it does not replace its slab because of it.
func TestQuiescedOnceOut(t *testing.T) {
	in := [2]input{pairInput(0), pairInput(1)}
	for name, c := range map[string]struct {
		op            uint64
		before, write func(w *world)
	}{
		"rows": {0, func(*world) {}, func(w *world) {
			require.ErrorIs(t, w.cancelOne(&in[0]), ep.ErrFenced)
		}},
		"deferred words": {1, func(w *world) {
			w.bothDispatch(in)
			require.ErrorIs(t, w.cancelOne(&in[0]), ep.ErrInProgress)
			require.NoError(t, w.bufs[1].Release(0)) // opens operation 1
		}, func(w *world) {
			_ = w.bufs[0].Release(1) // any call pays
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, watch := newWatchedPair(t)
			c.before(w)
			open := w.doms[1].Control(1).Word(layout.Open(0)).Load()
			require.True(t, protocol.IsFor(open, c.op))
			slab, err := w.doms[1].Slab(1, protocol.DetailOf(open))
			require.NoError(t, err)
			out := false
			watch.act = func() { fenceZero(w.doms[1].Members()); out = true }
			c.write(w)
			require.True(t, out, "it was not taken out where it should be")
			require.False(t, protocol.IsFor(slab.Word(layout.Arrive(0)).Load(), c.op))
			require.False(t, protocol.IsFor(slab.Word(layout.Done(0)).Load(), c.op))
			for l := range pair.experts / pair.ranks {
				require.Zero(t, slab.Word(layout.Counter(l)).Load())
			}
		})
	}
}

// newWatchedPair is two ranks with one slot; rank 0's domain is watched.
func newWatchedPair(t *testing.T) (*world, *slabWatch) {
	t.Helper()
	doms := inproc.New(2, layout.ControlBytes)
	watch := &slabWatch{Domain: doms[0]}
	w := &world{t: t, doms: []domain.Domain{watch, doms[1]}, bufs: make([]*cpu.Buffer, 2)}
	for r, dom := range w.doms {
		b, err := cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 16 << 20, NumSlots: 1})
		require.NoError(t, err)
		w.bufs[r] = b
		t.Cleanup(func() { _ = b.Close() })
	}
	return w, watch
}
