package model

import (
	"hash/maphash"
	"slices"
	"time"
)

// Result is what an exploration has found.
type Result struct {
	States  int
	Time    time.Duration
	Broken  string // the property that does not hold, or empty
	Trace   string // the shortest way to a state that breaks it
	Stopped bool   // by the limit of states
}

// Explore visits every state that can be reached, nearest first, so that the
// first state found to break a property is at the end of a shortest trace.
func (m *Model) Explore(limit int) Result {
	e := &explorer{mover: mover{Model: m}, known: newSet(m.Exact)}
	begin := time.Now()
	r := e.run(limit)
	r.States, r.Time = len(e.parent), time.Since(begin)
	return r
}

// explorer remembers, for every state in order of discovery, its predecessor
// and which of that one's moves led to it: enough to replay a trace.
type explorer struct {
	mover
	known  set
	parent []uint32
	choice []uint8
	front  []State
	ahead  []State
}

func (e *explorer) run(limit int) Result {
	start := e.initial()
	e.visit(&start, 0, 0)
	at := 0
	for len(e.ahead) > 0 {
		e.front, e.ahead = e.ahead, e.front[:0]
		for i := range e.front {
			if broken := e.expand(&e.front[i], uint32(at)); broken != fine {
				return Result{Broken: properties[broken], Trace: e.trace(at, broken)}
			}
			at++
		}
		if len(e.parent) > limit {
			return Result{Stopped: true}
		}
	}
	return Result{}
}

// expand visits the successors of a state, and judges it.
func (e *explorer) expand(s *State, at uint32) (broken uint8) {
	if s.broken != fine {
		return s.broken
	}
	moves := e.next(s)
	for i := range moves {
		e.visit(&moves[i].To, at, i)
	}
	if len(moves) == 0 {
		return e.atEnd(s)
	}
	return fine
}

func (e *explorer) visit(s *State, parent uint32, choice int) {
	if e.known.add(s) {
		e.parent = append(e.parent, parent)
		e.choice = append(e.choice, uint8(choice))
		e.ahead = append(e.ahead, *s)
	}
}

// trace replays the moves that lead to the state with number at.
func (e *explorer) trace(at int, broken uint8) string {
	var choices []uint8
	for i := at; i > 0; i = int(e.parent[i]) {
		choices = append(choices, e.choice[i])
	}
	slices.Reverse(choices)
	return e.replay(choices, broken)
}

// set is the states that are known: by 128 bits of hash, or entire.
type set interface{ add(*State) bool }

func newSet(exact bool) set {
	if exact {
		return exactSet{}
	}
	return &hashSet{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		slots: make([][2]uint64, 1<<16),
	}
}

type exactSet map[State]struct{}

func (e exactSet) add(s *State) bool {
	n := len(e)
	e[*s] = struct{}{}
	return len(e) > n
}

// hashSet is an open-addressed table of hashes. With 128 bits, two of a
// hundred million states share a hash with a probability below 1e-22.
type hashSet struct {
	seeds [2]maphash.Seed
	slots [][2]uint64
	n     int
}

func (h *hashSet) add(s *State) bool {
	key := [2]uint64{maphash.Comparable(h.seeds[0], *s), maphash.Comparable(h.seeds[1], *s) | 1}
	if !h.insert(key) {
		return false
	}
	h.n++
	if h.n*4 > len(h.slots)*3 {
		h.grow()
	}
	return true
}

func (h *hashSet) insert(key [2]uint64) bool {
	mask := uint64(len(h.slots) - 1)
	for i := key[0] & mask; ; i = (i + 1) & mask {
		switch h.slots[i] {
		case key:
			return false
		case [2]uint64{}:
			h.slots[i] = key
			return true
		}
	}
}

func (h *hashSet) grow() {
	old := h.slots
	h.slots = make([][2]uint64, 2*len(old))
	for _, key := range old {
		if key != [2]uint64{} {
			h.insert(key)
		}
	}
}
