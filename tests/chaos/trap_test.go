package chaos

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Kinds of faults. A short one ends well before the deadline, a long one lasts
// until the others have gone on.
const (
	kill       = "kill"
	stop       = "stop"
	stopShort  = "stop-short"
	delay      = "delay"
	delayShort = "delay-short"
)

var kinds = []string{kill, stop, stopShort, delay, delayShort}

// trap makes a rank strike itself at the n-th pass of a point. It also knows
// how long the rank was away from all points: a rank that got no processor is
// late by no fault of the library.
type trap struct {
	say   func(event)
	start time.Time
	armed atomic.Pointer[armed]
	last  atomic.Int64

	mu   sync.Mutex
	gaps []gap
}

type armed struct {
	fault
	left atomic.Int64
}

// fault is what a rank does to itself.
type fault struct {
	Kind  string
	Point point
	Nth   int64
	For   time.Duration // of a delay
}

type gap struct{ at, long time.Duration }

// Gaps are worth remembering from shortGap on, for as long as gapMemory.
const (
	shortGap  = 4 * time.Millisecond
	gapMemory = 500 * time.Millisecond
)

func newTrap(say func(event)) *trap { return &trap{say: say, start: time.Now()} }

func (t *trap) arm(f fault) {
	a := &armed{fault: f}
	a.left.Store(f.Nth)
	t.armed.Store(a)
}

// disarm reports whether the trap was still armed.
func (t *trap) disarm() bool { return t.armed.Swap(nil) != nil }

// hit says that the rank passes a point.
func (t *trap) hit(p point) {
	t.tick()
	t.pass(p)
}

// awaits reports whether a point is the one to strike at.
func (t *trap) awaits(p point) bool {
	a := t.armed.Load()
	return a != nil && a.Point == p
}

// pass is hit by a goroutine that says nothing of the rank's own steps.
func (t *trap) pass(p point) {
	a := t.armed.Load()
	if a != nil && a.Point == p && a.left.Add(-1) == 0 && t.armed.CompareAndSwap(a, nil) {
		t.strike(a.fault)
	}
}

func (t *trap) strike(f fault) {
	t.say(event{What: "fired", Point: f.Point, At: time.Now().UnixNano()})
	begin := time.Now()
	switch f.Kind {
	case kill:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {}
	case stop, stopShort:
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGSTOP)
	default:
		time.Sleep(f.For)
	}
	if f.Kind == stop { // until the parent resumes it
		f.For = time.Since(begin)
	}
	t.last.Store(int64(time.Since(t.start) - max(0, time.Since(begin)-f.For)))
	t.tick() // the time beyond what was planned
}

// tick notes how long no point was passed.
func (t *trap) tick() {
	now := time.Since(t.start)
	last := time.Duration(t.last.Swap(int64(now)))
	if now-last < shortGap {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.gaps) > 0 && now-t.gaps[0].at > gapMemory {
		t.gaps = t.gaps[1:]
	}
	t.gaps = append(t.gaps, gap{now, now - last})
}

// worst returns the longest gap of late.
func (t *trap) worst() (long time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, g := range t.gaps {
		if time.Since(t.start)-g.at <= gapMemory {
			long = max(long, g.long)
		}
	}
	return long
}
