package cpu_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

var flatTrio = flatShape{shape: trio, extra: [protocol.NumExtras]int{3, 0, 8}}

// flatExchange runs a flat dispatch and combine and compares both with the
// oracle, which goes by the mask that the calls leave behind.
func (w *world) flatExchange(rank int, s flatShape, ins []flatInput, mask []int32, timeout time.Duration) error {
	d := new(dispatched)
	a := w.flatArgs(rank, s, &ins[rank], d)
	a.ActiveRanks, a.Timeout = mask, timeout
	if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
		return err
	}
	lost := func(r int) bool { return mask[r] == 0 }
	rows, err := d.checkFlat(rank, s, ins, lost)
	if err != nil {
		return err
	}
	c := flatCombineArgs(d, s, &ins[rank], d.computeFlat(rank, s, rows, d.res.CombineX), true)
	c.ActiveRanks, c.Timeout = mask, combineWithin(timeout)
	if _, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
		return err
	}
	if !bytes.Equal(c.Out, wantFlat(&ins[rank], s, lost)) {
		return fmt.Errorf("rank %d: combine differs from the oracle without the ranks that %v leaves out", rank, mask)
	}
	return nil
}

// flatExchangeAll runs flatExchange on some ranks, and expects exactly these in the masks.
func (w *world) flatExchangeAll(s flatShape, ranks rankset.Set) {
	w.t.Helper()
	ins := flatInputs(seeded(w.t), s, uniform)
	w.some(ranks, func(r int) error {
		mask := ones(s.ranks)
		err := w.flatExchange(r, s, ins, mask, 20*time.Second)
		for t, v := range mask {
			if err == nil && (v == 1) != ranks.Has(t) {
				err = fmt.Errorf("rank %d: mask %v, members %v", r, mask, ranks)
			}
		}
		return err
	})
}

// TestFlatRejoin: a rank dies, the others go on, a fresh process takes its
// place; flat and packed operations in turn.
func TestFlatRejoin(t *testing.T) {
	w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20})
	for range 5 {
		w.flatExchangeAll(flatTrio, rankset.Upto(3))
		inproc.Kill(w.doms[0], 2)
		w.flatExchangeAll(flatTrio, rankset.Of(0, 1))
		w.exchangeAll(trio, rankset.Of(0, 1))
		w.flatExchangeAll(flatTrio, rankset.Of(0, 1))
		w.meet(rankset.Upto(3), rankset.Of(2))
		w.exchangeAll(trio, rankset.Upto(3))
	}
}

// TestFlatDeathWhileWaiting: the others wait for a rank that never begins.
func TestFlatDeathWhileWaiting(t *testing.T) {
	for name, lose := range map[string]func(w *world){
		"dies":    func(w *world) { inproc.MarkDying(w.doms[0], 2) },
		"is late": func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20})
			ins := flatInputs(r2(0), flatTrio, uniform)
			go func() { w.waits(1); lose(w) }()
			w.someWithout(rankset.Of(0, 1), 50*time.Millisecond, func(r int, timeout time.Duration) error {
				mask := ones(3)
				err := w.flatExchange(r, flatTrio, ins, mask, timeout)
				require.Equal(t, []int32{1, 1, 0}, mask)
				return err
			})
			if name == "is late" {
				require.ErrorIs(t, w.flatExchange(2, flatTrio, ins, ones(3), -1), ep.ErrFenced)
			}
			w.flatExchangeAll(flatTrio, rankset.Of(0, 1))
		})
	}
}

// stopping lets a rank do something before it places rows, and then place none.
type stopping struct {
	device.Kernels
	before func()
}

func (k *stopping) Place(b *device.PlaceBatch) {
	if k.before == nil {
		k.Kernels.Place(b)
		return
	}
	k.before()
}

// TestFlatHole: a rank that has its places and is lost before it has filled
// them leaves rows that no expert is asked to run on. No rank sees what it writes
// later.
func TestFlatHole(t *testing.T) {
	kern := &stopping{Kernels: kernels.NewReference()}
	w := &world{t: t, doms: inproc.New(3, layout.ControlBytes), bufs: make([]*cpu.Buffer, 3)}
	for r, dom := range w.doms {
		k := []device.Kernels{kern, kernels.NewReference(), kernels.NewReference()}[r]
		b, err := cpu.New(dom, k, ep.Config{NumBytes: 24 << 20, DebugFill: true})
		require.NoError(t, err)
		w.bufs[r] = b
		t.Cleanup(func() { _ = b.Close() })
	}
	w.flatExchangeAll(flatTrio, rankset.Upto(3))
	ins := flatInputs(r2(3), flatTrio, uniform)
	ins[0].input = randomInput(r2(4), 8, trio.hidden, trio.topk, trio.experts, uniform)
	for e, width := range flatTrio.extra {
		ins[0].extra[e] = make([]byte, 8*width)
	}
	over, lost := make(chan struct{}), make(chan error, 1)
	kern.before = func() { <-over }
	go func() { lost <- w.flatExchange(0, flatTrio, ins, ones(3), -1) }()
	w.someWithout(rankset.Of(1, 2), 50*time.Millisecond, func(r int, timeout time.Duration) error {
		mask := ones(3)
		d := new(dispatched)
		a := w.flatArgs(r, flatTrio, &ins[r], d)
		a.ActiveRanks, a.Timeout = mask, timeout
		if _, err := w.bufs[r].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
			return err
		}
		require.Equal(t, []int32{0, 1, 1}, mask)
		rows, err := d.checkFlat(r, flatTrio, ins, func(r int) bool { return r == 0 })
		holes := d.holes(rows)
		require.Len(t, holes, len(wantFlatRows(r, flatTrio, ins[:1], nobody)))
		require.NotEmpty(t, holes)
		for _, at := range holes {
			ids, weights := d.flatTopk(at, flatTrio)
			require.Equal(t, []int64{-1, -1, -1}, ids)
			require.Equal(t, []float32{0, 0, 0}, weights)
		}
		return err
	})
	close(over)
	_ = within(t, lost) // it may end its dispatch, without its own rows
	_, err := w.dispatchFlat(0, flatTrio, &ins[0])
	require.ErrorIs(t, err, ep.ErrFenced)
	w.flatExchangeAll(flatTrio, rankset.Of(1, 2))
}

// TestFlatDeathInCombine: a rank that dies before it has published outputs
// contributes nothing.
func TestFlatDeathInCombine(t *testing.T) {
	for range 10 {
		w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20})
		ins := flatInputs(seeded(t), flatTrio, uniform)
		var ds [3]*dispatched
		w.each(func(r int) (err error) { ds[r], err = w.dispatchFlat(r, flatTrio, &ins[r]); return err })
		go func() { time.Sleep(2 * time.Millisecond); inproc.MarkDying(w.doms[0], 1) }()
		w.some(rankset.Of(0, 2), func(r int) error {
			mask := ones(3)
			rows, err := ds[r].checkFlat(r, flatTrio, ins, nobody)
			if err != nil {
				return err
			}
			a := flatCombineArgs(ds[r], flatTrio, &ins[r], ds[r].computeFlat(r, flatTrio, rows, ds[r].res.CombineX), true)
			a.ActiveRanks = mask
			_, err = w.bufs[r].Combine(ds[r].res.Op, a, ep.PhaseDone, -1)
			if err == nil && !bytes.Equal(a.Out, wantFlat(&ins[r], flatTrio, func(r int) bool { return mask[r] == 0 })) {
				err = fmt.Errorf("rank %d: combine differs from the oracle with mask %v", r, mask)
			}
			return err
		})
	}
}

// TestFlatMask: a rank that the caller leaves out gets and gives nothing.
func TestFlatMask(t *testing.T) {
	r := seeded(t)
	w := newWorld(t, 3, ep.Config{NumBytes: 24 << 20})
	masks := [][]int32{{1, 1, 0, 9}, {1, 1, 0}, {0, 0, 1}} // 2 against 0 and 1
	for range 30 {
		ins := flatInputs(r, flatTrio, uniform)
		w.each(func(rank int) error { return w.flatExchange(rank, flatTrio, ins, masks[rank], -1) })
		w.flatExchangeAll(flatTrio, rankset.Upto(3))
	}
}

// TestFlatCancel: a rank that gives a flat dispatch up leaves the others with empty
// places or none, not in a wait.
func TestFlatCancel(t *testing.T) {
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20})
	s := flatShape{shape: small}
	for range 20 {
		ins := flatInputs(seeded(t), s, uniform)
		next := flatInputs(seeded(t), s, uniform)
		w.each(func(rank int) error {
			d := new(dispatched)
			if rank == 1 {
				time.Sleep(time.Millisecond)
				if _, err := w.bufs[1].Dispatch(w.flatArgs(1, s, &ins[1], d), &d.res, ep.PhaseDone, -1); err != nil {
					return err
				}
				return w.flatTrip(1, s, next, true)
			}
			p, err := w.bufs[0].Dispatch(w.flatArgs(0, s, &ins[0], d), &d.res, ep.PhaseDone, 0)
			if err == ep.ErrInProgress {
				p.Cancel()
			} else if err != nil {
				return err
			}
			return w.flatTrip(0, s, next, true)
		})
	}
}

// TestFencedAnywhereFlat is TestFencedAnywhere for a flat exchange.
func TestFencedAnywhereFlat(t *testing.T) {
	s := flatShape{shape: pair}
	n := int64(1)
	for passed := true; passed; n++ {
		doms := newDomains(2, rankset.Of(0, 1))
		watched := &watchedDomain{Domain: doms[0], act: fenceZero}
		w := &world{t: t, doms: []domain.Domain{watched, doms[1]}, bufs: make([]*cpu.Buffer, 2)}
		for r, dom := range w.doms {
			b, err := cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 24 << 20})
			require.NoError(t, err)
			w.bufs[r] = b
		}
		ins := flatInputs(r2(5), s, uniform)
		peer := make(chan error, 1)
		go func() { peer <- w.flatExchange(1, s, ins, ones(2), time.Second) }()
		watched.left.Store(n)
		if err := w.flatExchange(0, s, ins, ones(2), time.Second); err != nil {
			require.ErrorIs(t, err, ep.ErrFenced, "fenced at look %d", n)
		}
		passed = watched.left.Load() <= 0
		watched.left.Store(0)
		require.NoError(t, within(t, peer))
		require.NoError(t, w.bufs[0].Close())
		require.NoError(t, w.bufs[1].Close())
	}
	require.Greater(t, n, int64(5))
}
