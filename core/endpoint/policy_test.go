package endpoint

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is SIEVE and FIFO in the plainest form: a slice, newest first.
type model struct {
	policy  Policy
	items   []int32
	visited map[int32]bool
	hand    int32 // the entry it points to; none: the tail
}

func (m *model) remove(i int32) {
	at := slices.Index(m.items, i)
	if m.hand == i {
		m.hand = none
		if at > 0 {
			m.hand = m.items[at-1]
		}
	}
	m.items = slices.Delete(m.items, at, at+1)
	delete(m.visited, i)
}

func (m *model) candidate(eligible func(int32) bool) int32 {
	if !slices.ContainsFunc(m.items, eligible) {
		return none
	}
	at := len(m.items) - 1
	if m.policy == SIEVE && m.hand != none {
		at = slices.Index(m.items, m.hand)
	}
	for {
		i := m.items[at]
		if eligible(i) && (m.policy == FIFO || !m.visited[i]) {
			if m.policy == SIEVE {
				m.hand = i
			}
			return i
		}
		if eligible(i) {
			m.visited[i] = false
		}
		if at--; at < 0 {
			at = len(m.items) - 1
		}
	}
}

// TestPolicies (ES12): the lists do what the models do on any trace, also with
// one or two entries, with the hand's own entry removed, and put in again.
func TestPolicies(t *testing.T) {
	seed := seedOf(t)
	for round := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, round))
		size := []int{1, 2, 3, 8}[round%4]
		policy := Policy(round / 4 % 2)
		o := newOrder(policy, size)
		m := &model{policy: policy, visited: map[int32]bool{}, hand: none}
		visited := make([]bool, size)
		was := func(i int32) bool { v := visited[i]; visited[i] = false; return v }
		for range 200 {
			i := int32(rng.IntN(size))
			in := slices.Contains(m.items, i)
			switch rng.IntN(4) {
			case 0:
				if !in {
					o.insert(i)
					m.items = slices.Insert(m.items, 0, i)
					visited[i] = false
				}
			case 1:
				if in {
					visited[i], m.visited[i] = true, true
				}
			case 2:
				if in {
					o.remove(i)
					m.remove(i)
				}
			case 3:
				mask := rng.Uint64()
				if rng.IntN(2) == 0 {
					mask = ^uint64(0)
				}
				eligible := func(i int32) bool { return mask>>i&1 == 1 }
				got, want := o.candidate(eligible, was), m.candidate(eligible)
				require.Equal(t, want, got, "seed %d round %d", seed, round)
				if got != none && rng.IntN(2) == 0 {
					o.remove(got)
					m.remove(got)
				}
			}
		}
	}
}

func TestPolicyNames(t *testing.T) {
	require.Equal(t, "sieve fifo policy 7", SIEVE.String()+" "+FIFO.String()+" "+Policy(7).String())
}
