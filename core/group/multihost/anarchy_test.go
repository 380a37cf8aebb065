package multihost

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// anarchy plays agreements in a world without time: whatever can come next comes next, by
// the seed. Ranks believe at random which ranks are unresponsive, want at random some to
// be out, and die; every stream keeps its order and nothing else does. What must hold
// then is safety alone: that agreed sets form a chain.
func anarchy(seed uint64) (broken bool) {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := 3 + rng.IntN(3)
	w := newWorld(seed, n)
	for _, p := range w.ranks {
		p.rules.bound = time.Hour
		p.rules.lapse = time.Hour
		p.rules.retry = time.Duration(rng.IntN(60)) * time.Millisecond
	}
	var agreed []rankset.Set
	for range 150 + rng.IntN(250) {
		w.now = w.now.Add(time.Millisecond)
		i, j := rng.IntN(n), rng.IntN(n)
		p := w.ranks[i]
		if p.dead || i == j {
			continue
		}
		switch k := rng.IntN(100); {
		case k < 80:
			w.letIn(rng, j, i)
		case k < 86:
			p.unresponsive = rankset.FromWord(rng.Uint64() & rng.Uint64()).And(p.set).Without(i).Minus(p.gone)
		case k < 97:
			p.ask(w.now, p.word(), rankset.Of(j).And(p.word()))
		case k < 98:
			w.kill(i)
		default:
			p.leave()
		}
		p.propose(w.now)
		w.flush(p)
		agreed = append(agreed, p.set)
		for _, s := range agreed {
			if both := s.And(p.set); both != s && both != p.set {
				return true
			}
		}
	}
	return false
}

// letIn delivers some of what waits on a stream, whatever its time.
func (w *world) letIn(rng *rand.Rand, from, to int) {
	k, p := [2]int{from, to}, w.ranks[to]
	for range 1 + rng.IntN(3) {
		if len(w.pipes[k]) == 0 {
			return
		}
		parcel := w.pipes[k][0]
		w.pipes[k] = w.pipes[k][1:]
		unresponsive := p.unresponsive
		if parcel.eof {
			p.ended(w.now, from)
		} else {
			p.receive(w.now, &parcel.m)
		}
		p.unresponsive = unresponsive.Minus(p.gone) // hearing does not change what it believes
		w.flush(p)
	}
}

// TestAnarchy: the agreement is safe whatever any rank believes.
func TestAnarchy(t *testing.T) {
	from, to := seeds(t, 5000)
	for seed := from; seed < to; seed++ {
		if anarchy(seed) {
			t.Fatalf("MOEWIRE_TEST_SEED=%d: two sets of which neither has the other were agreed on", seed)
		}
	}
}

// TestQuorums: any two quorums of a set have a voter in common, unless one is
// made of ranks that are gone for the other.
func TestQuorums(t *testing.T) {
	for n := 1; n <= 7; n++ {
		c := newAgreement(0, rankset.Upto(n), testRules, time.Time{})
		for word := range uint64(1) << n {
			a := rankset.FromWord(word)
			for other := range uint64(1) << n {
				b := rankset.FromWord(other)
				if a.And(b).Empty() && c.quorum(a, rankset.Set{}) && c.quorum(b, rankset.Set{}) {
					t.Fatalf("%d ranks: both %v and %v", n, a, b)
				}
				if gone := rankset.Upto(n).Minus(a); c.quorum(a, gone) == a.Empty() {
					t.Fatalf("%d ranks: %v alone is left", n, a)
				}
			}
			half := 2*a.Len() == n
			if half && c.quorum(a, rankset.Set{}) != a.Has(0) {
				t.Fatalf("%d ranks: half %v", n, a)
			}
		}
	}
}
