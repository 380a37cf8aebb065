// Package chaos runs groups of real processes and strikes them in the middle
// of calls and of membership updates, at points that have names. Every result
// is compared with an oracle, and only a rank that was struck may be lost.
//
// The ranks stand on one host, on a host each, or on two: remote ones are reached
// over TCP.
//
// MOEWIRE_CHAOS, MOEWIRE_KILLS and MOEWIRE_SUSPICIONS set how many faults the
// tests make in each of these places, MOEWIRE_SEED what they draw. With -short
// TestChaos makes 62 faults, else 360.
package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
)

// setting is a number from the environment.
func setting(name string, otherwise int64) int64 {
	if n, err := strconv.ParseInt(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// numFaults is how many a test makes: what the variable says, else what the
// test does, or with -short a sixth of it.
func numFaults(name string, otherwise int) int {
	if testing.Short() {
		otherwise = (otherwise + 5) / 6
	}
	return int(setting(name, int64(otherwise)))
}

func parseInt(t *testing.T, s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	require.NoError(t, err)
	return n
}

func newSeed() uint64 {
	return uint64(setting("MOEWIRE_SEED", time.Now().UnixNano()&(1<<40-1)))
}

// Deadlines are short, but longer than a busy machine keeps a rank waiting for
// a processor.
const deadline = 120 * time.Millisecond

// slowFrom is how long a rank must have been away from all points to be late
// by itself: the failure detector suspects it by less.
const slowFrom = 8 * time.Millisecond

// part of the faults falls on groups of so many ranks.
type part struct{ ranks, percent int }

func TestChaos(t *testing.T) {
	t.Run("local", func(t *testing.T) { chaosAt(t, allLocal, 200, []part{{4, 64}, {2, 12}, {3, 12}, {8, 12}}) })
	t.Run("remote", func(t *testing.T) { chaosAt(t, allRemote, 80, []part{{4, 52}, {2, 16}, {3, 20}, {8, 12}}) })
	t.Run("split", func(t *testing.T) { chaosAt(t, split, 80, []part{{4, 68}, {3, 20}, {8, 12}}) })
}

func chaosAt(t *testing.T, at place, faults int, parts []part) {
	faults = numFaults("MOEWIRE_CHAOS", faults)
	struck := faultCounts{}
	for _, part := range parts {
		t.Run(fmt.Sprintf("R%d", part.ranks), func(t *testing.T) {
			runChaos(t, at, part.ranks, max(1, faults*part.percent/100), struck)
		})
	}
	in, all := struck.inCalls()
	t.Logf("%d faults, %d in calls\n%v", all, in, struck)
	if all >= 100 {
		require.GreaterOrEqual(t, 2*in, all, "too few faults in calls")
	}
}

// chaos is one run.
type chaos struct {
	*group
	r       *rand.Rand
	struck  faultCounts
	count   int // faults of this run
	missed  int // armed points that were not passed
	early   int // ranks lost that no fault had struck, late by themselves
	unfair  int // the same, and not late
	updates int
	steps   uint64

	outnumbered int // ranks lost because too few ranks went on
	orphaned    int // ranks killed while a child held their sockets
}

func newChaos(t *testing.T, at place, ranks int, struck faultCounts) *chaos {
	seed := newSeed()
	t.Logf("seed %d", seed)
	c := &chaos{group: newGroup(t, options{ranks: ranks, place: at, seed: seed, timeout: at.deadline(ranks)}), struck: struck}
	c.r = rand.New(rand.NewPCG(seed, uint64(ranks)))
	c.found(rankset.Upto(ranks))
	return c
}

func runChaos(t *testing.T, at place, ranks, faults int, struck faultCounts) {
	c := newChaos(t, at, ranks, struck)
	for c.count < faults {
		c.round()
	}
	c.change(false)
	c.settle(rankset.Set{}, rankset.Set{})
	c.finish()
	t.Logf("%d killed while a child held their sockets", c.orphaned)
	t.Logf("%d faults, %d processes, %d updates, %d steps; %d points not passed; lost beside those: %d without a quorum, %d late ranks, %d others",
		c.count, len(c.children), c.updates, c.steps, c.missed, c.outnumbered, c.early, c.unfair)
	require.Zero(t, c.unfair, "ranks were lost that were neither struck nor late: MOEWIRE_SEED=%d", c.seed)
}

// hits counts a fault.
func (c *chaos) hits(v *child) {
	c.count++
	c.struck.add(v.fault.Point, v.fault.Kind)
	v.struck = true
	if v.fault.Kind == kill && v.held() {
		c.orphaned++
	}
}

// round strikes once or twice, looks which ranks were lost, and often changes the
// membership after that.
func (c *chaos) round() {
	if len(c.playing()) < 2 {
		c.change(c.r.IntN(3) == 0)
		return
	}
	c.pass(time.Duration(c.r.IntN(8)) * time.Millisecond)
	var targets []*child
	for range 1 + c.r.IntN(6)/5 {
		if v := c.strike(); v != nil {
			targets = append(targets, v)
		}
	}
	if len(targets) == 1 && targets[0].stopped && len(c.playing()) > 1 && c.r.IntN(2) == 0 {
		if v := c.strikeAt(c.inSuspicions(), 4, 2*c.timeout); v != nil { // in the suspicion of the first
			targets = append(targets, v)
		}
	}
	c.resolve(targets)
	if c.r.IntN(4) != 0 {
		c.change(c.r.IntN(3) == 0)
	}
}

// draw plans a fault at one of the first passes of a point.
func (c *chaos) draw(points []point, passes int64) fault {
	f := fault{Point: points[c.r.IntN(len(points))], Nth: 1 + c.r.Int64N(passes)}
	switch n := c.r.IntN(100); {
	case n < 36:
		f.Kind = kill
	case n < 60:
		f.Kind = stop
	case n < 75:
		f.Kind, f.For = stopShort, c.short()
	case n < 90:
		f.Kind, f.For = delayShort, c.short()
	default:
		f.Kind, f.For = delay, 5*c.timeout
	}
	if f.Point.ofProcess() && f.Kind == delay {
		f.Kind = stop
	}
	return f
}

func (c *chaos) short() time.Duration { return time.Duration(c.r.Int64N(int64(deadline) / 4)) }

// strike picks a rank and strikes it; nil: the point was not passed.
func (c *chaos) strike() *child {
	switch c.r.IntN(6) {
	case 0:
		return c.strikeFromOutside()
	case 1:
		return c.strikeAt([]point{atBetween, atComputing}, 12, deadline)
	}
	return c.strikeAt(c.common(), 12, deadline)
}

// strikeAt waits for a rank to pass one of some points.
func (c *chaos) strikeAt(points []point, passes int64, limit time.Duration) *child {
	v := c.pick()
	if v == nil {
		return nil
	}
	c.arm(v, c.draw(points, passes))
	if !c.within(limit, func() bool { return v.fired != nil || v.ended }) {
		c.disarm(v)
	}
	if v.fired == nil {
		c.missed++
		return nil
	}
	c.hits(v)
	return v
}

func (c *chaos) arm(v *child, f fault) {
	v.fault, v.fired, v.cleared = f, nil, false
	c.log("%v: arm %v at %v x %d for %v", v, f.Kind, f.Point, f.Nth, f.For)
	c.tell(v, command{What: "arm", Fault: f})
}

func (c *chaos) disarm(v *child) {
	c.tell(v, command{What: "disarm"})
	c.await("disarmed or fired", func() bool { return v.cleared || v.fired != nil || v.ended })
}

// strikeFromOutside sends a signal, wherever the rank is.
func (c *chaos) strikeFromOutside() *child {
	v := c.pick()
	if v == nil {
		return nil
	}
	v.fired = nil
	v.fault = fault{Kind: kill, Point: atSignal}
	sig := syscall.SIGKILL
	if c.r.IntN(2) == 0 {
		v.fault.Kind, sig = stop, syscall.SIGSTOP
	}
	c.log("%v: %v from outside", v, v.fault.Kind)
	c.signal(v, sig)
	c.hits(v)
	return v
}

// pick chooses a target that was not struck in this round, so that another rank goes
// on.
func (c *chaos) pick() *child {
	able := c.playing()
	if len(able) < 2 {
		return nil
	}
	if v := able[c.r.IntN(len(able))]; !v.struck {
		return v
	}
	return nil
}

// resolve waits until the group has seen what the faults have done.
func (c *chaos) resolve(targets []*child) {
	var must, may rankset.Set
	for _, v := range targets {
		switch v.fault.Kind {
		case kill, stop:
			must = must.With(v.rank)
		default: // it may stand still while another one's suspicion lasts
			if v.fault.Kind == delay || len(targets) > 1 {
				may = may.With(v.rank)
			}
		}
	}
	c.settle(must, may)
	for _, v := range targets {
		v.struck = false
		if v.fault.Kind == stop && c.r.IntN(3) != 0 {
			c.resume(v)
			c.await("the fenced rank to say so", func() bool { return v.fenced || v.ended || c.goesOn(v, targets) })
		}
	}
}

// goesOn reports whether v still plays because all other ranks that play are targets, too:
// no rank was left to fence it.
func (c *chaos) goesOn(v *child, targets []*child) bool {
	others := func(p *child) bool { return !slices.Contains(targets, p) }
	return v.playing && !slices.ContainsFunc(c.playing(), others)
}

// settle waits until every rank that takes part has gone on for some steps after
// the loss of the ranks in must. Ranks in may can be lost as well; the loss of others
// is noted.
func (c *chaos) settle(must, may rankset.Set) {
	before := c.playing()
	marks := make([]uint64, len(before))
	for i, p := range before {
		marks[i] = p.steps
		if must.Has(p.rank) {
			p.playing = false
		}
	}
	c.await("everybody to go on", func() bool {
		for i, p := range before {
			if !must.Has(p.rank) && p.playing && !p.ended && (!p.set.And(must).Empty() || p.steps < marks[i]+2) {
				return false
			}
		}
		return true
	})
	for i, p := range before {
		c.steps += p.steps - marks[i]
	}
	c.checkLosses(before, must, may)
	for _, p := range c.children {
		p.peak = 0
	}
	c.agree()
}

// checkLosses looks for ranks that were lost although no fault had struck them.
func (c *chaos) checkLosses(before []*child, must, may rankset.Set) {
	rest := setOf(before).Minus(must).Minus(may)
	busy := c.busy(before)
	for _, p := range before {
		if rest.Has(p.rank) && p.fenced && (p.gap >= slowFrom || busy) {
			rest = rest.Without(p.rank)
			c.early++
		}
	}
	few := c.few(rest)
	for _, p := range before {
		switch {
		case !rest.Has(p.rank) || !p.fenced:
		case few:
			c.outnumbered++
		default:
			c.blame(p)
		}
	}
}

// busy: on several hosts a suspicion looks at copies, which other goroutines of
// both ranks carry. Where ranks themselves were away for as long as a suspicion
// lasts, these may have been, too.
func (c *chaos) busy(before []*child) bool {
	return c.place != allLocal && slices.ContainsFunc(before, func(p *child) bool { return p.peak >= 4*multihost.DefaultHeartbeat })
}

// blame notes that a rank was lost that no fault had struck, and that was not late.
func (c *chaos) blame(p *child) {
	c.unfair++
	c.t.Errorf("%v was lost, and was not late: its longest absence was %v\n%s", p, p.gap, c.recent(40))
}

// agree: all ranks that take part name the same members, themselves among them.
func (c *chaos) agree() {
	c.await("agreement", func() bool {
		all := c.playing()
		set := setOf(all)
		for _, p := range all {
			if p.set != set {
				return false
			}
		}
		c.agreed = set
		return true
	})
}
