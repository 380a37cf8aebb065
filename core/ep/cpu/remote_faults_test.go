package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

func remoteInput(rank int) input { return randomInput(r2(rank), 4, 16, 2, 4, uniform) }

// TestRemoteDataWins: what a rank had sent before it was lost counts, even if
// no step has looked at it yet.
func TestRemoteDataWins(t *testing.T) {
	useHosts(t, twoHosts)
	for range 20 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		ins := []input{remoteInput(0), remoteInput(1)}
		var d dispatched
		p, err := w.bufs[1].Dispatch(w.args(1, small, &ins[1], &d), &d.res, ep.PhaseSent, -1)
		require.NoError(t, err)
		require.NotNil(t, p)
		inproc.Kill(w.doms[0], 1)
		mine, mask := new(dispatched), ones(2)
		a := w.args(0, small, &ins[0], mine)
		a.ActiveRanks = mask
		_, err = w.bufs[0].Dispatch(a, &mine.res, ep.PhaseDone, -1)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 1}, mask)
		require.NoError(t, mine.check(0, small, ins))
		mine.compute(0, small)
		out := make([]byte, ins[0].tokens*small.hidden*2)
		c := combineArgs(mine, &ins[0], out)
		c.ActiveRanks = mask
		_, err = w.bufs[0].Combine(mine.res.Op, c, ep.PhaseDone, -1)
		require.NoError(t, err)
		require.Equal(t, []int32{1, 0}, mask, "it has sent no outputs")
		require.Equal(t, wantCombine(&ins[0], small.hidden, small.topk, func(e int64) bool { return e >= 2 }), out)
	}
}

// TestRemoteLeftOut: rank 0 leaves a rank out with its mask, combines and releases. Then
// the other rank comes. It is told of outputs only after its own rows.
func TestRemoteLeftOut(t *testing.T) {
	useHosts(t, twoHosts)
	for range 10 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		ins := []input{remoteInput(0), remoteInput(1)}
		var d dispatched
		a := w.args(0, small, &ins[0], &d)
		a.ActiveRanks = []int32{1, 0}
		_, err := w.bufs[0].Dispatch(a, &d.res, ep.PhaseDone, -1)
		require.NoError(t, err)
		d.compute(0, small)
		out, err := w.combine(0, small, &ins[0], &d)
		require.NoError(t, err)
		require.Equal(t, wantCombine(&ins[0], small.hidden, small.topk, func(e int64) bool { return e >= 2 }), out)
		require.NoError(t, w.bufs[0].Release(d.res.Op))
		settledCounters(w.bufs[0])
		late, err := w.dispatch(1, small, &ins[1])
		require.NoError(t, err)
		late.compute(1, small)
		_, err = w.combine(1, small, &ins[1], late)
		require.NoError(t, err)
		w.exchangeAll(small, rankset.Of(0, 1))
		for _, b := range w.bufs {
			require.Zero(t, b.Counters().NumMessagesDropped)
		}
	}
}

// TestRemoteChaos: ranks of several hosts die or come late in the middle of
// operations, and return with updates; what the others get is what the oracle
// says of the ranks that their masks name.
func TestRemoteChaos(t *testing.T) { remoteChaos(t, false) }

func remoteChaos(t *testing.T, preReduce bool) {
	r := seeded(t)
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	if raceEnabled {
		t.Skip("a goroutine that stands for a process cannot be killed: it still stores rows, into holes that others read")
	}
	for range rounds {
		h := randomHosts(r)
		useHosts(t, func(int) inproc.Hosts { return h })
		n := len(h.Of)
		all := rankset.Upto(n)
		s := shape{ranks: n, maxTokens: 1 + r.IntN(9), hidden: 16, experts: 2 * n, topk: 1 + r.IntN(4), preReduce: preReduce}
		w := newWorld(t, n, ep.Config{NumBytes: 24 << 20})
		for range 3 {
			w.exchangeAll(s, all)
			target := r.IntN(n)
			w.lose(r, s, all, target, r.IntN(2) == 0)
			w.exchangeAll(s, all.Without(target))
			w.meet(all, rankset.Of(target))
		}
		w.exchangeAll(s, all)
		for _, b := range w.bufs {
			require.NoError(t, b.Close())
		}
	}
}

// lose runs operations of all ranks, in which one rank dies or sleeps.
func (w *world) lose(r *rand.Rand, s shape, all rankset.Set, target int, dies bool) {
	after := time.Duration(r.IntN(1500)) * time.Microsecond
	ins := inputs(r, s, uniform)
	w.some(all, func(rank int) error {
		if rank == target {
			if dies {
				replaced := *w // another process takes its place
				replaced.bufs = slices.Clone(w.bufs)
				go func() { _, _ = replaced.exchange(rank, s, ins, time.Second) }()
				time.Sleep(after)
				inproc.Kill(w.doms[0], target)
			}
			return nil
		}
		for range 3 {
			if _, err := w.exchange(rank, s, ins, 500*time.Millisecond); err != nil {
				return fmt.Errorf("target %d, dies %v: %w", target, dies, err)
			}
		}
		return nil
	})
}

// TestRemoteCloseLeavesNothing: the goroutine that takes messages ends.
func TestRemoteCloseLeavesNothing(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
	w.exchangeAll(small, rankset.Of(0, 1))
	for _, b := range w.bufs {
		require.NoError(t, b.Close())
		require.NoError(t, b.Close())
	}
	stacks := make([]byte, 1<<20)
	require.NotContains(t, strings.ReplaceAll(string(stacks[:runtime.Stack(stacks, true)]), "\n", " "), "servePump")
}
