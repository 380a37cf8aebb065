// Package search visits the states of a model: all of them, nearest first, or
// those of random runs.
package search

import (
	"slices"
	"strings"
	"time"
)

// Move is one step of one process, and the state it leads to.
type Move[S any] struct {
	Proc int
	Step uint8
	Arg  int
	To   S
}

// Space is a model. S has no pointers: states are compared and hashed.
type Space[S comparable] interface {
	Initial() S
	// Next returns every step that is possible, at most 256. The slice is
	// reused by the next call.
	Next(s *S) []Move[S]
	// Broken names the property that a state breaks, if any.
	Broken(s *S) string
	// AtEnd does for a state without steps.
	AtEnd(s *S) string
	// Tell writes down the i-th step of a trace, with its changes.
	Tell(i int, from *S, move *Move[S]) string
}

// Result is what an exploration has found.
type Result struct {
	States  int
	Time    time.Duration
	Broken  string // the property that does not hold, or empty
	Trace   string // the shortest way to a state that breaks it
	Stopped bool   // by the limit of states
}

// Explore visits every state that can be reached, nearest first. So the
// first state found to break a property is at the end of a shortest trace. It
// stops behind limit states. With exact it keeps states instead of 128 bits of
// each.
func Explore[S comparable](space Space[S], limit int, exact bool) Result {
	e := &explorer[S]{Space: space, known: newSet[S](exact)}
	begin := time.Now()
	r := e.run(limit)
	r.States, r.Time = len(e.parent), time.Since(begin)
	return r
}

// explorer remembers, for every state in order of discovery, its predecessor
// and which of that one's moves led to it: enough to replay a trace.
type explorer[S comparable] struct {
	Space[S]
	known  set[S]
	parent []uint32
	choice []uint8
	front  []S
	ahead  []S
}

func (e *explorer[S]) run(limit int) Result {
	start := e.Initial()
	e.visit(&start, 0, 0)
	at := 0
	for len(e.ahead) > 0 {
		e.front, e.ahead = e.ahead, e.front[:0]
		for i := range e.front {
			if broken := e.expand(&e.front[i], uint32(at)); broken != "" {
				return Result{Broken: broken, Trace: e.trace(at, broken)}
			}
			at++
		}
		if len(e.parent) > limit {
			return Result{Stopped: true}
		}
	}
	return Result{}
}

// expand visits the successors of a state, and checks it.
func (e *explorer[S]) expand(s *S, at uint32) (broken string) {
	if broken = e.Broken(s); broken != "" {
		return broken
	}
	moves := e.Next(s)
	for i := range moves {
		e.visit(&moves[i].To, at, i)
	}
	if len(moves) == 0 {
		return e.AtEnd(s)
	}
	return ""
}

func (e *explorer[S]) visit(s *S, parent uint32, choice int) {
	if e.known.add(s) {
		e.parent = append(e.parent, parent)
		e.choice = append(e.choice, uint8(choice))
		e.ahead = append(e.ahead, *s)
	}
}

// trace replays the moves that lead to the state with number at.
func (e *explorer[S]) trace(at int, broken string) string {
	var choices []uint8
	for i := at; i > 0; i = int(e.parent[i]) {
		choices = append(choices, e.choice[i])
	}
	slices.Reverse(choices)
	return replay(e.Space, choices, broken)
}

// replay makes the moves that were chosen, and writes each down.
func replay[S comparable](space Space[S], choices []uint8, broken string) string {
	s := space.Initial()
	var out strings.Builder
	for i, choice := range choices {
		move := space.Next(&s)[choice]
		out.WriteString(space.Tell(i+1, &s, &move))
		s = move.To
	}
	return out.String() + "     => " + broken + "\n"
}
