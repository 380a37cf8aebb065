package multirank

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// manyRounds is how many dispatches with combines come before the loss, and
// how many after it.
const manyRounds = 20

// short asks for fewer ranks and less repetition.
func short() bool { return testing.Short() || os.Getenv("MOEWIRE_SHORT") != "" }

func manyRanks() int {
	if short() {
		return 8
	}
	return rankset.MaxRanks
}

// middleRounds lasts about as long as the kill may take to come.
const middleRounds = 60

// startMany starts ranks with threads that can be counted.
func startMany(t *testing.T, role string) *group {
	return startGroup(t, role, manyRanks(), "GOMAXPROCS="+strconv.Itoa(manyProcs))
}

// TestManyRanks: as many ranks as there can be, each a process. Every row and
// every sum is right, one rank is killed, the others go on with what is left;
// and a process has the descriptors and threads that it should have.
func TestManyRanks(t *testing.T) {
	start := time.Now()
	g := startMany(t, "many")
	g.await("rounds done", 20*time.Second)
	t.Logf("%d ranks: %d rounds done %v after the start", manyRanks(), manyRounds, time.Since(start).Round(time.Millisecond))
	g.killOne()
}

// TestKilledInTheMiddle: the same when a rank is killed at any point of any
// operation. A rank that does not see it in one operation sees it in the next.
func TestKilledInTheMiddle(t *testing.T) {
	g := startMany(t, "middle")
	g.await("first done", 20*time.Second)
	delay := rand.N(time.Duration(manyRanks()) * 20 * time.Millisecond)
	t.Logf("killed after %v", delay)
	time.Sleep(delay)
	g.killOne()
}

// killOne expects all other ranks to end well.
func (g *group) killOne() {
	g.t.Helper()
	killed := len(g.cmds) / 2
	start := time.Now()
	g.kill(killed)
	var survivors []int
	for r := range g.cmds {
		if r != killed {
			survivors = append(survivors, r)
		}
	}
	g.waitFor(30*time.Second, survivors...)
	g.t.Logf("survivors were through %v after the kill", time.Since(start).Round(time.Millisecond))
}

func init() { roles["many"], roles["middle"] = many, middle }

func middle(e *env) error {
	if err := e.rounds(0, 1, -1); err != nil {
		return err
	}
	e.say("first done")
	if err := e.rounds(1, middleRounds, -1); err != nil {
		return err
	}
	if e.rank == e.ranks/2 {
		time.Sleep(time.Minute) // killed even later than that
	}
	return nil
}

func many(e *env) error {
	killed := e.ranks / 2
	if err := e.rounds(0, manyRounds, -1); err != nil {
		return err
	}
	if err := e.checkUsage(); err != nil {
		return err
	}
	e.say("rounds done")
	if e.rank == killed {
		time.Sleep(time.Minute)
	}
	if err := e.rounds(manyRounds, manyRounds, killed); err != nil {
		return err
	}
	if members := e.buf.Members(); members.Has(killed) || !members.Has(e.rank) {
		return fmt.Errorf("members are %v: this one must be among them, rank %d not", members, killed)
	}
	return nil
}

// rounds plays some operations from number first on, without one rank.
func (e *env) rounds(first, count, without int) error {
	for n := first; n < first+count; n++ {
		tokens := make([]int, e.ranks)
		for r := range tokens {
			if r != without {
				tokens[r] = (r + n) % (soakTokens + 1)
			}
		}
		s, err := e.send(n, tokens, uint64(n))
		if err == nil {
			err = s.finish(e)
		}
		if err != nil {
			return fmt.Errorf("operation %d: %w", n, err)
		}
		if without >= 0 && s.active[without] != 0 {
			return fmt.Errorf("operation %d does not show that rank %d is lost", n, without)
		}
	}
	return nil
}

// manyProcs bounds the runtime's own threads, on any machine. The runtime may
// start another one or two at any time, for a system call that takes long.
const (
	manyProcs   = 2
	threadSlack = 2
)

// checkUsage compares with the formulas in the documentation of core/group/shm:
// 2 descriptors for the watcher, 1 per peer in another process, 3 per domain.
// One thread for the watcher, however many ranks there are.
func (e *env) checkUsage() error {
	after := measure()
	fds, want := after.fds-e.before.fds, 2+(e.ranks-1)+3
	if fds != want {
		return fmt.Errorf("%d descriptors more with %d ranks, the formula gives %d", fds, e.ranks, want)
	}
	if more := after.threads - e.before.threads; more > 1+threadSlack {
		return fmt.Errorf("%d threads more with %d ranks, the formula gives 1 (and %d may be the runtime's)", more, e.ranks, threadSlack)
	}
	return nil
}
