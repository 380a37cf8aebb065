package model

import (
	"time"

	"github.com/moewire/moewire/tests/model/search"
)

// Explore visits every state that can be reached.
func (m *Model) Explore(limit int) search.Result {
	return search.Explore[State](&mover{Model: m}, limit, m.Exact)
}

// Walk makes random runs of the protocol for some time: for configurations
// with more states than can be visited.
func (m *Model) Walk(seed uint64, limit time.Duration) search.Result {
	return search.Walk[State](&mover{Model: m}, seed, limit)
}

// Initial, Broken and AtEnd make a mover a search.Space.
func (v *mover) Initial() State { return v.initial() }

// Broken names the property that a state breaks.
func (v *mover) Broken(s *State) string { return properties[s.broken] }

// AtEnd checks a state without steps.
func (v *mover) AtEnd(s *State) string { return properties[v.atEnd(s)] }
