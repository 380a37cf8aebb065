package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
)

// point is a kind of access that an actor is about to make.
type point int

// Words of slabs and control pages come twice: the actor's own (even) and
// those of a peer (odd).
const (
	atParams point = 2 * iota
	atArrive
	atDone
	atCounter
	atLayout
	atBytes
	atOpen
	atYReady
	atWaitsFor
	atBeat
	atSince
	atQuiesced
	endOfWords
)

const (
	atMembers = endOfWords + iota
	atPresent
	atLost
	atDying
	atAddSlab
	atSlab
	atWake
	atPrepareSleep
	atCancelSleep
	atSleep
	atYield
	atClock
	atPlace
	atReduce
	atCopy
	atCompute
	atCall
	atReserve
	atPost
	atNext
	atRelease
	atUntaken
	numPoints
)

var wordNames = []string{
	"params", "arrive", "done", "counter", "layout", "bytes",
	"open", "y_ready", "waits_for", "beat", "since", "quiesced",
}

var otherNames = []string{
	"members", "present", "lost", "dying", "add slab", "slab", "wake", "prepare sleep", "cancel sleep",
	"sleep", "yield", "clock", "place a row", "reduce a token", "copy", "experts", "call",
	"reserve", "post", "next", "release", "untaken",
}

func (p point) String() string {
	if p >= endOfWords {
		return otherNames[p-endOfWords]
	}
	if p%2 == 1 {
		return "peer's " + wordNames[p/2]
	}
	return "own " + wordNames[p/2]
}

// slabPoint names a word of a slab by its offset.
func slabPoint(off int64) point {
	switch {
	case off < layout.Arrive(0):
		return atParams
	case off < layout.Done(0):
		return atArrive
	case off < layout.Done(rankset.MaxRanks):
		return atDone
	case off < layout.HeaderBytes:
		return atCounter
	}
	return atLayout
}

func controlPoint(off int64) point {
	switch {
	case off < layout.YReady(0):
		return atOpen
	case off < layout.WaitsFor():
		return atYReady
	case off == layout.WaitsFor():
		return atWaitsFor
	case off == layout.Beat():
		return atBeat
	case off == layout.Since():
		return atSince
	}
	return atQuiesced
}

type faultKind int

const (
	kill faultKind = iota
	freezeShort
	freezeLong
	freezeVeryLong
	slowDown
	dieSlowly // goes on for a moment when the kernel has begun to end it
	numFaultKinds
)

func (k faultKind) String() string {
	return [...]string{"kill", "short freeze", "freeze about the deadline", "long freeze", "slow", "slow death"}[k]
}

// fault strikes when its actor comes to a point for the n-th time.
type fault struct {
	kind  faultKind
	point point // negative: any
	n     int
}

func randomFault(r *rand.Rand, kind faultKind) *fault {
	f := &fault{kind: kind, point: -1, n: 1 + r.IntN(3000)}
	if r.IntN(3) > 0 { // rare points as often as frequent ones
		f.point, f.n = point(r.IntN(int(numPoints))), 1+r.IntN(1<<r.IntN(9))
	}
	return f
}

// struck counts faults by kind and point.
type struck [numFaultKinds][numPoints]int

func (a *actor) strike(p point) {
	for _, f := range a.plan {
		if f.n > 0 && (f.point < 0 || f.point == p) {
			if f.n--; f.n == 0 {
				a.suffer(f.kind, p)
			}
		}
	}
	if a.slow > a.st.now && a.state == runnable && a.st.rng.IntN(8) == 0 {
		a.freeze(time.Duration(a.st.rng.Int64N(int64(4 * pollInterval))))
	}
}

// suffer makes the fault true for an actor that is about to go on.
func (a *actor) suffer(kind faultKind, p point) {
	st := a.st
	if a.state != runnable && a.state != asleep { // its pump may come to a point while it sleeps
		return
	}
	a.hit, a.skip = true, st.rng.IntN(2) == 0
	a.scene.stats.struck[kind][p]++
	st.note(a, p, fmt.Sprintf(" (%s)", kind))
	switch kind {
	case kill:
		a.die()
	case freezeShort:
		a.freeze(time.Duration(st.rng.Int64N(int64(deadline / 2))))
	case freezeLong:
		a.freeze(time.Duration(st.rng.Int64N(int64(3 * deadline))))
	case freezeVeryLong:
		a.freeze(deadline*4 + time.Duration(st.rng.Int64N(int64(40*deadline))))
	case slowDown:
		a.slow = st.now + time.Duration(st.rng.Int64N(int64(20*deadline)))
	case dieSlowly:
		a.inc.dying = true
		a.scene.ringAll()
		a.freeze(time.Duration(st.rng.Int64N(int64(deadline))))
		a.plan = append(a.plan, &fault{kind: kill, point: -1, n: 1 + st.rng.IntN(200)})
	}
	if a.state == frozen && !a.scene.single && st.rng.IntN(2) == 0 { // and soon again
		a.plan = append(a.plan, again(st.rng))
	}
}

// again is a second freeze that follows a first: at any point, or where the
// rank writes.
func again(r *rand.Rand) *fault {
	writes := []point{-1, -1, atPlace, atParams + 1, atCounter + 1, atLayout + 1, atDone + 1}
	return &fault{kind: freezeLong, point: writes[r.IntN(len(writes))], n: 1 + r.IntN(1<<r.IntN(8))}
}

func (a *actor) freeze(d time.Duration) {
	a.state, a.until = frozen, a.st.now+d
	a.st.frozen += d
}

// die stops an actor for good. Its peers learn of it in two stages.
func (a *actor) die() {
	st := a.st
	a.state = dead
	a.dom.loseMail()
	dyingAt := st.now + time.Duration(st.rng.Int64N(int64(3*deadline)))
	lost := dyingAt + time.Duration(st.rng.Int64N(int64(3*deadline)))
	if st.rng.IntN(3) == 0 {
		dyingAt = st.now
	}
	inc := a.inc
	st.events = append(st.events,
		event{dyingAt, func() { inc.dying = true; a.scene.ringAll() }},
		event{lost, func() { inc.lost = true; a.scene.ringAll() }})
}
