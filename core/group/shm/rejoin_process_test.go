package shm

import (
	"fmt"
	"strings"
	"testing"
)

// gang is a group of ranks that are processes; nil for absent ones.
type gang struct {
	t    *testing.T
	best livenessKind
	kids []*child
	away []*child // of a later rendezvous, by rank
}

func newGang(t *testing.T, n int, best livenessKind) *gang {
	return &gang{t: t, best: best, kids: make([]*child, n), away: make([]*child, n)}
}

// invite gathers metadata and tells every rank; it returns which ranks are survivors.
func (g *gang) invite(present uint64) (survivors uint64) {
	g.t.Helper()
	all := make([]string, len(g.kids))
	for r := range g.kids {
		switch come := present&(1<<r) != 0; {
		case !come:
			if g.kids[r] != nil {
				g.away[r], g.kids[r] = g.kids[r], nil
			}
			continue
		case g.kids[r] == nil && g.away[r] != nil:
			g.kids[r], g.away[r] = g.away[r], nil
		}
		if g.kids[r] == nil {
			g.kids[r] = startChild(g.t, r, len(g.kids), g.best, nil)
		} else {
			survivors |= 1 << r
			g.kids[r].tell("relist")
		}
		all[r] = g.kids[r].expectLine("metadata")
	}
	eachPresent(present, func(r int) {
		if survivors&(1<<r) != 0 {
			g.kids[r].tell("reconnect")
		}
		g.kids[r].tell(strings.Join(all, "\n"))
	})
	return survivors
}

func (g *gang) meet(present uint64) {
	g.t.Helper()
	survivors := g.invite(present)
	eachPresent(present, func(r int) {
		if survivors&(1<<r) != 0 {
			g.kids[r].expectLine("reconnected")
		} else {
			g.kids[r].expectLine("connected")
		}
	})
}

// check lets every rank write and read: marks[w] is how often rank w has written to each
// present rank.
func (g *gang) check(present uint64, marks []string) {
	g.t.Helper()
	eachPresent(present, func(r int) { g.kids[r].tell("write"); g.kids[r].expectLine("slab") })
	eachPresent(present, func(r int) {
		g.kids[r].tell("read")
		got := g.kids[r].expectLine("marks")
		if marks[r] != "" && got != marks[r] {
			g.t.Errorf("rank %d: marks %s, want %s", r, got, marks[r])
		}
		eachPresent(present, func(peer int) {
			g.kids[r].tell(fmt.Sprint("lost ", peer))
			g.kids[r].expectLine("<nil>")
		})
	})
}

func (g *gang) kill(r int) {
	_ = g.kids[r].cmd.Process.Kill()
	_ = g.kids[r].cmd.Wait()
	g.kids[r] = nil
}

func TestKilledProcessIsReplaced(t *testing.T) {
	for _, best := range []livenessKind{byPeerPidfd, byPidfdOpen, byConnection} {
		t.Run(best.String(), func(t *testing.T) {
			g := newGang(t, 3, best)
			g.meet(0b111)
			g.check(0b111, []string{"1 1 1", "1 1 1", "1 1 1"})
			g.kill(1)
			g.meet(0b111)
			g.check(0b111, []string{"2 2 2", "1 1 1", "2 2 2"})
			g.kill(0) // the members page comes from rank 1, a joiner of before
			g.meet(0b111)
			g.check(0b111, []string{"1 1 1", "2 2 2", "3 3 3"})
			for _, r := range []int{1, 2} {
				g.kids[r].tell("await-loss 0")
				g.kids[r].expectLine("waiting")
			}
			g.kill(0)
			for _, r := range []int{1, 2} {
				if answer := g.kids[r].expectLine(""); !strings.Contains(answer, "true rank 0") {
					t.Errorf("rank %d: %s", r, answer)
				}
			}
		})
	}
}

func TestDeathDuringTheRendezvous(t *testing.T) {
	g := newGang(t, 4, byPeerPidfd)
	g.meet(0b1111)
	g.check(0b1111, make([]string, 4))
	for _, killed := range []int{0, 3} {
		all := make([]string, 4)
		for r, c := range g.kids {
			c.tell("relist")
			all[r] = c.expectLine("metadata")
		}
		eachPresent(0b1111&^(1<<killed), func(r int) {
			g.kids[r].tell("reconnect\n" + strings.Join(all, "\n"))
		})
		g.kill(killed) // listening, but it has not begun
		eachPresent(0b1111&^(1<<killed), func(r int) {
			if why := g.kids[r].expectLine("failed"); !strings.Contains(why, "rank ") {
				t.Errorf("rank %d: %s", r, why)
			} else {
				t.Logf("rank %d: %s", r, why)
			}
		})
		g.meet(0b1111)
		g.check(0b1111, make([]string, 4))
	}
}

func TestScaleOfProcesses(t *testing.T) {
	g := newGang(t, 8, byPeerPidfd)
	for i, present := range []uint64{0b00001111, 0b00001011, 0b00111111, 0b11111111} {
		g.meet(present)
		g.check(present, make([]string, 8))
		if i == 3 {
			g.check(present, []string{"5 5 4 5 3 3 2 2", "5 5 4 5 3 3 2 2", "4 4 4 4 3 3 2 2", "", "", "", "", ""})
		}
	}
}
