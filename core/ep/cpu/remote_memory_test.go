package cpu_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

var errNoMemory = errors.New("the system has no memory left")

// poor is a rank that gets no memory for rows that wait, while it is told so.
type poor struct {
	domain.Domain
	now   *atomic.Bool
	asked *atomic.Int64
	hide  *atomic.Int64 // so many looks for messages of rank 2 find none
	once  *atomic.Bool  // there is memory again after the first refusal
}

func (p poor) Remote() domain.Remote { return poorRemote{p.Domain.Remote(), p} }

type poorRemote struct {
	domain.Remote
	p poor
}

func (f poorRemote) Next(rank int) []byte {
	if rank == 2 && f.p.hide.Add(-1) >= 0 {
		return nil
	}
	return f.Remote.Next(rank)
}

func (f poorRemote) Memory(n int64) (domain.Segment, error) {
	if n < layout.RegionBytes && f.p.now.Load() { // shadow slabs are longer
		f.p.asked.Add(1)
		if f.p.once.Load() {
			f.p.now.Store(false)
		}
		return nil, errNoMemory
	}
	return f.Remote.Memory(n)
}

// opener is cpu.New, or cpu.NewWithoutPump.
type opener func(domain.Domain, device.Kernels, ep.Config) (*cpu.Buffer, error)

// poorWorld is a deterministic group in which rank 0 is poor. Rank 2, on
// the other host, has sent it rows that must wait for those of rank 1.
func poorWorld(t *testing.T, open opener) (w *world, p poor, ins []input) {
	useHosts(t, twoHosts)
	w = &world{t: t, doms: newDomains(4, rankset.Upto(4)), bufs: make([]*cpu.Buffer, 4), numBytes: 16 << 20}
	p = poor{Domain: w.doms[0], now: new(atomic.Bool), asked: new(atomic.Int64), hide: new(atomic.Int64), once: new(atomic.Bool)}
	w.doms[0] = p
	p.now.Store(true)
	for r, d := range w.doms {
		b, err := open(d, kernels.NewReference(), ep.Config{NumBytes: 16 << 20, Deterministic: true})
		require.NoError(t, err)
		w.bufs[r] = b
		t.Cleanup(func() { _ = b.Close() })
	}
	return w, p, inputs(seeded(t), poorShape, uniform)
}

var poorShape = shape{ranks: 4, maxTokens: 8, hidden: 16, experts: 8, topk: 4}

// TestNoReorderMemory: rows that have no place yet and find no memory are not
// dropped. The caller gets an error that says what is missing, and from which rank.
func TestNoReorderMemory(t *testing.T) {
	w, _, ins := poorWorld(t, cpu.New)
	var ds [4]dispatched
	var pending [4]*cpu.Pending
	begin := func(r int) (err error) {
		pending[r], err = w.bufs[r].Dispatch(w.args(r, poorShape, &ins[r], &ds[r]), &ds[r].res, ep.PhaseDone, 0)
		return err
	}
	require.ErrorIs(t, begin(2), ep.ErrInProgress)
	require.ErrorIs(t, begin(3), ep.ErrInProgress)
	err := begin(0)
	for errors.Is(err, ep.ErrInProgress) {
		for _, r := range []int{2, 3} {
			_ = pending[r].Wait(ep.PhaseDone, 0) // fails when rank 0 has left
		}
		err = pending[0].Wait(ep.PhaseDone, 0)
	}
	require.ErrorIs(t, err, errNoMemory)
	require.ErrorContains(t, err, "rows of rank")
	require.Zero(t, w.bufs[0].Counters().NumMessagesDropped)
	require.ErrorIs(t, begin(0), errNoMemory, "the reason stays")
}

// TestReorderMemoryComes: nothing is lost when memory comes before the next
// call.
func TestReorderMemoryComes(t *testing.T) {
	w, p, ins := poorWorld(t, cpu.New)
	var ds [4]dispatched
	var pending [4]*cpu.Pending
	for _, r := range []int{0, 2, 3} {
		var err error
		p.now.Store(r != 0) // the call of rank 0 itself meets nothing
		pending[r], err = w.bufs[r].Dispatch(w.args(r, poorShape, &ins[r], &ds[r]), &ds[r].res, ep.PhaseDone, 0)
		require.ErrorIs(t, err, ep.ErrInProgress)
	}
	for p.asked.Load() < 3 { // the pump of rank 0 has tried, again and again
		for _, r := range []int{2, 3} {
			require.ErrorIs(t, pending[r].Wait(ep.PhaseDone, 0), ep.ErrInProgress)
		}
	}
	p.now.Store(false)
	w.each(func(r int) error {
		if r == 1 {
			d, err := w.dispatch(1, poorShape, &ins[1])
			return errors.Join(err, d.check(1, poorShape, ins))
		}
		return errors.Join(pending[r].Wait(ep.PhaseDone, -1), ds[r].check(r, poorShape, ins))
	})
	for _, b := range w.bufs {
		require.Zero(t, b.Counters().NumMessagesDropped)
	}
}

// TestReorderMemoryIsBack: nothing is lost when memory was missing only while a
// step looked for the last words of a rank that is out.
func TestReorderMemoryIsBack(t *testing.T) {
	w, p, ins := poorWorld(t, cpu.NewWithoutPump)
	var ds [4]dispatched
	var pending [4]*cpu.Pending
	p.hide.Store(1 << 30)
	p.once.Store(true)
	for _, r := range []int{0, 2} {
		var err error
		pending[r], err = w.bufs[r].Dispatch(w.args(r, poorShape, &ins[r], &ds[r]), &ds[r].res, ep.PhaseDone, 0)
		require.ErrorIs(t, err, ep.ErrInProgress)
	}
	require.True(t, membership.Fence(w.doms[0].Members(), 1, 0, 3))
	for p.asked.Load() == 0 {
		require.ErrorIs(t, pending[2].Wait(ep.PhaseDone, 0), ep.ErrInProgress)
		p.hide.Store(1) // from what comes first in a step
		require.ErrorIs(t, pending[0].Wait(ep.PhaseDone, 0), ep.ErrInProgress)
	}
	require.ErrorIs(t, pending[0].Wait(ep.PhaseDone, 0), ep.ErrInProgress)
	require.EqualValues(t, 1, p.asked.Load())
	require.Zero(t, w.bufs[0].Counters().NumMessagesDropped)
}
