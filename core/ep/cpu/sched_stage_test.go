package cpu_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/moewire/moewire/core/ep/cpu"
)

// A stage runs ranks as actors, one at a time. Every access to what ranks
// share is a point. There the stage may give the turn to another actor, or kill or
// freeze this one. All choices come from one generator and time is a number:
// a seed is a schedule, to the last step.
type stage struct {
	rng     *rand.Rand
	now     time.Duration
	steps   int
	actors  []*actor
	cur     *actor // nil: the test itself is at work, and nothing yields
	slack   bool   // all sleeps end at the same times
	sticky  int    // chance in 100 that an actor keeps the turn
	over    bool
	fail    error
	ended   chan struct{}
	trace   []traced // a ring: the last steps
	events  []event
	frozen  time.Duration // sum over all freezes
	watch   func()        // called between any two steps
	convene func() bool   // holds a rendezvous if it is time for one
}

const (
	stepTime  = time.Microsecond
	yieldTime = 100 * time.Microsecond // what Domain.Yield costs
	maxSteps  = 3_000_000
)

// traceSteps is how much of a schedule a failure shows.
func traceSteps() int {
	if n, err := strconv.Atoi(os.Getenv("MOEWIRE_SCHEDULE_TRACE")); err == nil && n > 0 {
		return n
	}
	return 60
}

var errSteps = errors.New("the schedule does not end")

// event is something that the world does by itself at a time.
type event struct {
	at time.Duration
	do func()
}

type traced struct {
	who   *actor
	point point
	note  string
}

type state int

const (
	runnable state = iota
	asleep         // until the bell or `until`
	frozen         // until `until`
	atRendezvous
	dead
	finished
)

// actor is one incarnation of a rank.
type actor struct {
	st    *stage
	scene *scene
	inc   *incarnation
	dom   *playedDomain
	buf   *cpu.Buffer
	rank  int
	name  string
	turn  chan struct{}
	gone  chan struct{} // closed when its goroutine has ended
	state state
	until time.Duration
	plan  []*fault
	slow  time.Duration // scheduled rarely until then
	skip  bool          // a rendezvous does not wait for it while it is held up
	hit   bool          // some fault has struck it
	main  *actor        // of a pump: it takes the messages of this actor

	wants, pumping bool // of a pump: the lock
	part
}

func newStage(rng *rand.Rand) *stage {
	return &stage{
		trace: make([]traced, traceSteps()),
		rng:   rng, ended: make(chan struct{}, 1),
		sticky: []int{0, 30, 60, 90, 97}[rng.IntN(5)], slack: rng.IntN(2) == 0,
	}
}

// clock is what buffers take for the time.
func (st *stage) clock() time.Time {
	st.yield(atClock)
	return time.Unix(1, int64(st.now))
}

// spawn adds an actor, which begins when it is first given the turn.
func (st *stage) spawn(a *actor, play func()) {
	a.st, a.turn, a.gone = st, make(chan struct{}), make(chan struct{})
	st.actors = append(st.actors, a)
	go func() {
		defer close(a.gone)
		<-a.turn
		if st.over {
			return
		}
		defer st.leave(a)
		play()
	}()
}

// leave ends an actor's part, also when it panicked.
func (st *stage) leave(a *actor) {
	p := recover()
	if st.over {
		return // cut off in the middle of something
	}
	if p != nil {
		st.failed(fmt.Errorf("%s: panic: %v\n%s", a.name, p, debug.Stack()))
	}
	a.state = finished
	st.give(st.pick(nil))
}

func (st *stage) failed(err error) {
	if st.fail == nil {
		st.fail = err
	}
}

// run plays until no actor can go on.
func (st *stage) run() error {
	st.give(st.pick(nil))
	<-st.ended
	st.over = true
	for _, a := range st.actors {
		select {
		case a.turn <- struct{}{}:
		case <-a.gone:
		}
		<-a.gone
	}
	return st.fail
}

// yield is a point of the actor that has the turn.
func (st *stage) yield(p point) {
	a := st.cur
	if a == nil || st.over {
		return
	}
	st.now += stepTime
	st.note(a, p, "")
	a.struckAs().strike(p)
	st.pass(a)
}

func (st *stage) note(a *actor, p point, text string) {
	st.trace[st.steps%len(st.trace)] = traced{a, p, text}
	st.steps++
}

// pass returns when it is a's turn again.
func (st *stage) pass(a *actor) {
	next := st.pick(a)
	if next == a {
		return
	}
	st.give(next)
	<-a.turn
	if st.over {
		runtime.Goexit()
	}
}

// give wakes an actor; nil: the test.
func (st *stage) give(a *actor) {
	if st.cur = a; a == nil {
		st.ended <- struct{}{}
		return
	}
	a.turn <- struct{}{}
}

// pick draws the actor that goes on; nil: none.
func (st *stage) pick(a *actor) *actor {
	for {
		st.cur = nil
		st.watch()
		if st.steps > maxSteps {
			st.failed(errSteps)
		}
		if st.fail != nil {
			return nil
		}
		st.happen()
		if st.convene() {
			continue
		}
		if next := st.draw(a); next != nil {
			st.cur = next
			return next
		}
		if !st.jump() {
			return nil
		}
	}
}

func (st *stage) draw(a *actor) *actor {
	if a != nil && a.ready() && st.rng.IntN(100) < st.sticky {
		a.state = runnable
		return a
	}
	var ready [16]*actor
	n := 0
	for _, o := range st.actors {
		if o.ready() && n < len(ready) {
			ready[n] = o
			n++
		}
	}
	if n == 0 {
		return nil
	}
	next := ready[st.rng.IntN(n)]
	next.state = runnable
	return next
}

// alarm is when a sleep ends. Timers that go off together let ranks meet that
// would otherwise take turns.
func (st *stage) alarm(d time.Duration) time.Duration {
	at := st.now + d
	if st.slack {
		at += pollInterval - at%pollInterval
	}
	return at
}

func (a *actor) ready() bool {
	if !a.able() {
		return false
	}
	return a.state == runnable || ((a.state == asleep || a.state == frozen) && a.until <= a.st.now)
}

// happen runs all events that are due.
func (st *stage) happen() {
	for i := 0; i < len(st.events); i++ {
		if e := st.events[i]; e.at <= st.now {
			st.events = append(st.events[:i], st.events[i+1:]...)
			e.do()
			i = -1
		}
	}
}

// jump moves the time to when something can happen next.
func (st *stage) jump() bool {
	next := time.Duration(-1)
	earliest := func(at time.Duration) {
		if next < 0 || at < next {
			next = at
		}
	}
	busy := false
	for _, a := range st.actors {
		if a.state == asleep || a.state == frozen {
			if at := a.wakes(); at >= 0 {
				earliest(at)
			}
			busy = busy || a.main == nil
		}
	}
	for _, e := range st.events {
		earliest(e.at)
	}
	if next < 0 || !busy {
		return false
	}
	st.now = max(st.now, next)
	return true
}

// history prints the last steps, runs of one actor on a line.
func (st *stage) history() string {
	var out strings.Builder
	var last *actor
	for i := max(0, st.steps-len(st.trace)); i < st.steps; i++ {
		s := st.trace[i%len(st.trace)]
		if s.who != last {
			fmt.Fprintf(&out, "\n  %-8s", s.who.name)
			last = s.who
		}
		fmt.Fprintf(&out, " %s%s", s.point, s.note)
	}
	return out.String()
}
