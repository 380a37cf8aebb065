package cpu_test

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// strike plays rounds of three ranks, and overwrites a word of the third one's memory
// before the second round. It returns how each rank ended.
func strike(t *testing.T, overwrite func(w *wildWorld, target int)) (w *wildWorld, ends []wildOutcome) {
	return strikeWith(t, 0, overwrite)
}

// strikeWith is strike where the third rank waits for the others when the word is overwritten, and
// the others begin headStart later: a word that a rank stores again before it waits harms no rank.
func strikeWith(t *testing.T, headStart time.Duration, overwrite func(w *wildWorld, target int)) (w *wildWorld, ends []wildOutcome) {
	w = newWildWorld(t, trio.ranks, ep.Config{NumBytes: 16 << 20})
	t.Cleanup(w.close)
	ins := make([]input, trio.ranks)
	for i := range ins {
		ins[i] = randomInput(r2(i), trio.maxTokens, trio.hidden, trio.topk, trio.experts, uniform)
	}
	ends = make([]wildOutcome, trio.ranks)
	w.each(func(r int) error { _, err := w.wildRound(r, trio, ins, false); return err })
	if headStart == 0 {
		overwrite(w, 2)
	}
	struck := make(chan struct{})
	var wg sync.WaitGroup
	for r := range ends {
		wg.Go(func() {
			if r != 2 {
				<-struck
				time.Sleep(headStart)
			}
			for range 4 {
				lacks, err := w.wildRound(r, trio, ins, false)
				ends[r].lacks |= lacks
				if ends[r].err = err; err != nil {
					return
				}
			}
		})
	}
	if headStart != 0 {
		w.waits(2)
		overwrite(w, 2)
	}
	close(struck)
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(callTimeout):
		t.Fatal("a call does not return")
	}
	return w, ends
}

// costsTheOwnerAlone expects the two others to go on without the third, with right results. At
// least one rank has counted the violation, and says which word it was.
func costsTheOwnerAlone(t *testing.T, w *wildWorld, ends []wildOutcome, word string) {
	require.False(t, w.outside.Load(), "rows were about to be written outside of a slab")
	for r := range 2 {
		require.NoError(t, ends[r].err, "rank %d", r)
		require.EqualValues(t, 0b100, ends[r].lacks, "rank %d", r)
		require.EqualValues(t, rankset.Of(0, 1), w.bufs[r].Members())
	}
	require.Error(t, ends[2].err)
	found, why := uint64(0), ""
	for _, b := range w.bufs {
		found += b.Counters().NumViolations
		events, _ := b.Events(0)
		for _, ev := range events {
			why += ev.Why + "\n"
		}
		stats, err := b.Stats()
		require.NoError(t, err)
		require.Equal(t, b.Counters().NumViolations, stats.Violations)
	}
	require.NotZero(t, found)
	require.Contains(t, why, word)
	require.Contains(t, why, "allowed")
}

// TestWildCounter: a counter that another process has overwritten costs its owner its
// membership, whatever it holds. Where begin + n wraps, rows were written in front of the
// slab.
func TestWildCounter(t *testing.T) {
	capacity := uint64(trio.ranks * trio.maxTokens)
	for _, held := range []uint64{
		math.MaxUint64, math.MaxUint64 - 1, math.MaxUint64 - 7, math.MaxUint64 - 1<<20, math.MaxUint64 - 1<<30, 1 << 63, 1 << 40, 1 << 31, capacity + 1,
	} {
		t.Run(fmt.Sprintf("%#x", held), func(t *testing.T) {
			w, ends := strike(t, func(w *wildWorld, target int) {
				for slot := range wildSlots {
					for l := range trio.experts / trio.ranks {
						store(w.memory[target], w.slabAt(target, slot)+layout.Counter(l), held)
					}
				}
			})
			costsTheOwnerAlone(t, w, ends, "counter[")
		})
	}
}

// TestWildOwnWords: a rank finds what was done to its own words, and blames no other rank.
func TestWildOwnWords(t *testing.T) {
	control := func(off int64, v uint64) func(*wildWorld, int) {
		return func(w *wildWorld, target int) {
			store(w.memory[target], wildControl+off, load(w.memory[target], wildControl+off)^v)
		}
	}
	slab := func(off int64, v uint64) func(*wildWorld, int) {
		return func(w *wildWorld, target int) {
			for slot := range wildSlots {
				at := w.slabAt(target, slot) + off
				store(w.memory[target], at, load(w.memory[target], at)^v)
			}
		}
	}
	for _, c := range []struct {
		word   string
		strike func(*wildWorld, int)
	}{
		{"open[0]", control(layout.Open(0), 1<<20)},
		{"open[1]", control(layout.Open(1), math.MaxUint64)},
		{"open[1]", control(layout.Open(1), 1<<63)},
		{"open[0]", control(layout.Open(0), 3)}, // the id of a slab that does not exist
		{"open[0]", control(layout.Open(0), 0xffff)},
		{"y_ready[0]", control(layout.YReady(0), 1<<50)},
		{"quiesced", control(layout.Quiesced(), 1<<10)},
		{"waits_for", control(layout.WaitsFor(), 0b001)},
		{"since", control(layout.Since(), 1<<63)},
		{"order[", slab(layout.RowOrder(), 1<<17)},
		{"arrive or counted of rank 0", slab(layout.Arrive(0), 1<<30)},
		{"arrive or counted of rank 1", slab(layout.Arrive(1), 1)},
		{"done of rank 0", slab(layout.Done(0), 1<<60)},
		{"slab table", func(w *wildWorld, target int) { store(w.memory[target], wildTable, 4096) }},
		{"slab table", func(w *wildWorld, target int) { store(w.memory[target], wildTable+8, math.MaxUint64) }},
	} {
		t.Run(c.word, func(t *testing.T) {
			w, ends := strikeWith(t, 50*time.Millisecond, c.strike)
			costsTheOwnerAlone(t, w, ends, c.word)
			require.ErrorIs(t, ends[2].err, ep.ErrFenced)
		})
	}
}

// TestWildMembers: bits that no rank can have set are cleared again, and cost no rank anything.
func TestWildMembers(t *testing.T) {
	for _, bits := range []uint64{1 << 3, 1 << 47, 0xffffffffff << 3} {
		t.Run(fmt.Sprintf("%#x", bits), func(t *testing.T) {
			w, ends := strike(t, func(w *wildWorld, _ int) { store(w.members, 0, load(w.members, 0)|bits) })
			violations := uint64(0)
			for r, end := range ends {
				require.NoError(t, end.err, "rank %d", r)
				require.Zero(t, end.lacks)
				require.EqualValues(t, rankset.Upto(3), w.bufs[r].Members())
				violations += w.bufs[r].Counters().NumViolations
			}
			require.EqualValues(t, 0b111, load(w.members, 0)&(1<<membership.EpochShift-1))
			require.NotZero(t, violations)
		})
	}
}

// TestWildMembersTaken: a rank that loses its bit is out, and so is a rank that is put into
// another epoch; nothing else happens.
func TestWildMembersTaken(t *testing.T) {
	t.Run("bit", func(t *testing.T) {
		_, ends := strike(t, func(w *wildWorld, target int) { store(w.members, 0, load(w.members, 0)&^(1<<target)) })
		require.NoError(t, ends[0].err)
		require.NoError(t, ends[1].err)
		require.ErrorIs(t, ends[2].err, ep.ErrFenced)
	})
	for _, epoch := range []uint64{0, 2, 0x7fff, 0x9000, 0xffff} {
		t.Run(fmt.Sprintf("epoch %#x", epoch), func(t *testing.T) {
			_, ends := strike(t, func(w *wildWorld, _ int) {
				store(w.members, 0, epoch<<membership.EpochShift|(1<<membership.EpochShift-1))
			})
			for r, end := range ends {
				require.ErrorIs(t, end.err, ep.ErrFenced, "rank %d", r)
			}
		})
	}
}

// TestWildCounterRemote: a receiver of messages reserves for their sources, by counters of its
// own. An overwritten counter costs the receiver its membership, and the sender nothing.
func TestWildCounterRemote(t *testing.T) {
	for _, held := range []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 63, 1 << 20} {
		t.Run(fmt.Sprintf("%#x", held), func(t *testing.T) {
			overHosts = hostPlacements[0].of
			t.Cleanup(func() { overHosts = nil })
			w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
			for id := range wildSlots {
				slab, err := w.doms[1].Slab(1, id)
				require.NoError(t, err)
				for l := range pair.experts / 2 {
					slab.Word(layout.Counter(l)).Store(held)
				}
			}
			ins := []input{pairInput(0), {}} // the second one sends nothing
			errs := make([]error, 2)
			w.each(func(r int) error { _, errs[r] = w.dispatch(r, pair, &ins[r]); return nil })
			require.NoError(t, errs[0])
			require.ErrorIs(t, errs[1], ep.ErrFenced)
			require.NotZero(t, w.bufs[1].Counters().NumViolations)
			require.Eventually(t, func() bool { return w.bufs[0].Members() == rankset.Of(0) }, callTimeout, time.Millisecond)
		})
	}
}

// TestWildSince: a `since` beyond any clock moves no other rank's deadline.
func TestWildSince(t *testing.T) {
	for _, since := range []uint64{1 << 62, 1<<63 - 1, 1 << 63, math.MaxUint64} {
		t.Run(fmt.Sprintf("%#x", since), func(t *testing.T) {
			w := newWorld(t, 3, ep.Config{NumBytes: 16 << 20})
			stop := make(chan struct{})
			defer close(stop)
			go func() { // rank 1 shows that it waits for rank 2, and goes on doing so
				page := w.doms[1].Control(1)
				page.Word(layout.Since()).Store(since)
				page.Word(layout.WaitsFor()).Store(0b100)
				for {
					select {
					case <-stop:
						return
					case <-time.After(100 * time.Microsecond):
						page.Word(layout.Beat()).Add(1)
					}
				}
			}()
			in := randomInput(r2(0), 4, trio.hidden, trio.topk, trio.experts, uniform)
			ended := make(chan error, 1)
			go func() {
				d := new(dispatched)
				a := w.args(0, trio, &in, d)
				a.Timeout = 200 * time.Millisecond
				_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
				ended <- err
			}()
			require.NoError(t, within(t, ended))
			require.EqualValues(t, rankset.Of(0), w.bufs[0].Members())
		})
	}
}

// TestWildThenRejoin: a rank comes back by an update with the memory that was overwritten,
// and so does a group after its members page was overwritten.
func TestWildThenRejoin(t *testing.T) {
	slab := func(w *world, off int64) []*atomic.Uint64 {
		var words []*atomic.Uint64
		for id := range wildSlots {
			seg, err := w.doms[2].Slab(2, id)
			require.NoError(t, err)
			words = append(words, seg.Word(off))
		}
		return words
	}
	control := func(w *world, off int64) []*atomic.Uint64 { return []*atomic.Uint64{w.doms[2].Control(2).Word(off)} }
	for _, c := range []struct {
		name  string
		words func(w *world) []*atomic.Uint64
		to    uint64
		lost  int // of the three
	}{
		{"open", func(w *world) []*atomic.Uint64 { return control(w, layout.Open(0)) }, math.MaxUint64, 1},
		{"y_ready", func(w *world) []*atomic.Uint64 { return control(w, layout.YReady(1)) }, 1 << 60, 1},
		{"quiesced", func(w *world) []*atomic.Uint64 { return control(w, layout.Quiesced()) }, 1 << 40, 1},
		{"counter", func(w *world) []*atomic.Uint64 { return slab(w, layout.Counter(0)) }, math.MaxUint64, 1},
		{"done", func(w *world) []*atomic.Uint64 { return slab(w, layout.Done(0)) }, math.MaxUint64, 1},
		{"order", func(w *world) []*atomic.Uint64 { return slab(w, layout.RowOrder()) }, 77, 1},
		{"members", func(w *world) []*atomic.Uint64 { return []*atomic.Uint64{w.doms[0].Members().(*atomic.Uint64)} }, (membership.MaxEpoch - 100) << membership.EpochShift, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, trio.ranks, ep.Config{NumBytes: 16 << 20})
			ins := inputs(r2(7), trio, uniform)
			rounds := func(ranks rankset.Set, n int) (failed int) {
				var mu sync.Mutex
				w.some(ranks, func(r int) error {
					for range n {
						if _, err := w.exchange(r, trio, ins, callTimeout); err != nil {
							mu.Lock()
							failed++
							mu.Unlock()
							return nil
						}
					}
					return nil
				})
				return failed
			}
			require.Zero(t, rounds(rankset.Upto(3), 3))
			// The owner of a word may store there before any rank has read it: then nothing is lost.
			lost := 0
			for range 100 {
				for _, word := range c.words(w) {
					word.Store(c.to)
				}
				if lost = rounds(rankset.Upto(3), 3); lost > 0 {
					break
				}
			}
			require.Equal(t, c.lost, lost)
			w.meet(rankset.Upto(3), rankset.Set{})
			require.Zero(t, rounds(rankset.Upto(3), 6))
			for _, b := range w.bufs {
				require.EqualValues(t, rankset.Upto(3), b.Members())
			}
		})
	}
}
