package chaos

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// TestKillToReturn: how long after a kill -9 a survivor returns that waits in
// a dispatch without any deadline, beside processes with much memory.
func TestKillToReturn(t *testing.T) {
	kills := numFaults("MOEWIRE_KILLS", 10)
	t.Run("R2", func(t *testing.T) { timeKills(t, allLocal, 2, min(1<<30, freeBytes(t)/4), kills) })
	t.Run("R8", func(t *testing.T) { timeKills(t, allLocal, 8, 32<<20, (kills+3)/4) })
	t.Run("R4 remote", func(t *testing.T) { timeKills(t, allRemote, 4, 32<<20, (kills+3)/4) })
	t.Run("R4 split", func(t *testing.T) { timeKills(t, split, 4, 32<<20, (kills+3)/4) })
}

// returnsIn is generous: the time is reported, not bounded.
const returnsIn = 5 * time.Second

func timeKills(t *testing.T, at place, ranks int, resident int64, kills int) {
	g := newGroup(t, options{ranks: ranks, place: at, seed: newSeed(), timeout: -1, resident: resident})
	r := rand.New(rand.NewPCG(g.seed, 1))
	g.found(rankset.Upto(ranks))
	var took []time.Duration
	for range kills {
		took = append(took, g.timeKill(r)...)
		participants := g.playing()
		participants = append(participants, g.start(absentee(ranks, setOf(participants))))
		g.update(participants, never, testTimeout)
	}
	g.finish()
	require.NotEmpty(t, took)
	slices.Sort(took)
	t.Logf("R=%d, %d MiB each, %d kills, %d survivors' returns: p50 %v, p99 %v, max %v", ranks, resident>>20, kills, len(took),
		took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
	require.Less(t, took[len(took)-1], returnsIn)
}

// timeKill holds a rank between two calls, so that the others wait for it, and
// kills it. It returns how long each of them took to come back.
func (g *group) timeKill(r *rand.Rand) (took []time.Duration) {
	target := g.playing()[r.IntN(len(g.playing()))]
	target.fault, target.fired = fault{Kind: delay, Point: atBetween, Nth: 1 + r.Int64N(20), For: time.Hour}, nil
	g.tell(target, command{What: "arm", Fault: target.fault})
	g.await("the target to stand still", func() bool { return target.fired != nil })
	g.pass(time.Duration(5+r.IntN(20)) * time.Millisecond)
	at := time.Now()
	g.signal(target, syscall.SIGKILL)
	rest := g.playing()
	g.await("the survivors", func() bool {
		return !slices.ContainsFunc(rest, func(c *child) bool { return c.set.Has(target.rank) })
	})
	for _, c := range rest {
		took = append(took, time.Duration(c.setAt-at.UnixNano()))
	}
	g.await("the end of the target", func() bool { return target.ended })
	if wasSet := time.Now().Round(0).Sub(at.Round(0)) - time.Since(at); wasSet.Abs() > time.Millisecond {
		g.t.Logf("not counted: the clock, which processes share, was set by %v", wasSet)
		return nil
	}
	return took
}

// absentee is the lowest rank that is not in the set.
func absentee(ranks int, set rankset.Set) int {
	for r := range ranks {
		if !set.Has(r) {
			return r
		}
	}
	return -1
}

// freeBytes is the memory that is to be had.
func freeBytes(t *testing.T) int64 {
	info, err := os.ReadFile("/proc/meminfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(info)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			return parseInt(t, strings.Fields(rest)[0]) << 10
		}
	}
	t.Fatal("no MemAvailable in /proc/meminfo")
	return 0
}
