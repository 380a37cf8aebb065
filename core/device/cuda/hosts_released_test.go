package cuda

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/testenv"
)

// releasedOver are rings in which messages hold a phase of an operation, and in which
// they hold a part of it and the ring does not hold the rest.
var releasedOver = map[string]mailing{
	"whole":  {hostOf: []int{0, 1}, ringBytes: 1 << 16, messageBytes: 1 << 14, length: 16},
	"pieces": {hostOf: []int{0, 1}, ringBytes: 1 << 12, messageBytes: 900, length: 4},
}

// inOne has all calls of an operation wait for room, without a deadline.
func (o *op) inOne() {
	for r := range o.calls {
		o.calls[r].Split, o.calls[r].TimeoutNs = false, -1
	}
}

// dispatchIn and combineIn are whole calls of one rank in a slot.
func (g *group) dispatchIn(o *op, r, slot int) {
	c := o.inSlot(r, slot)
	require.NoError(g.t, g.ranks[r].Send(c))
	require.NoError(g.t, g.ranks[r].Receive(c))
}

func (g *group) combineIn(o *op, r, slot int, again bool) {
	s, err := layout.Of(o.shape)
	require.NoError(g.t, err)
	c := o.combine(r, g.ranks[r].Slab(slot)+uint64(s.RowsOff))
	d := o.inSlot(r, slot)
	c.Slot, c.Ticket, c.Again = slot, d.Ticket, again
	require.NoError(g.t, g.ranks[r].Publish(c))
	require.NoError(g.t, g.ranks[r].Reduce(c))
}

// awaitRelease ends when a rank has heard that another one has released what it combines.
func (g *group) awaitRelease(t *testing.T, r, by int) {
	t.Helper()
	heard := assert.Eventually(t, func() bool { return g.ranks[r].report().Error != 0 }, time.Minute, time.Millisecond)
	for _, m := range g.ranks { // some wait for one that has failed
		m.SetMembers(1 << protocol.EpochShift)
	}
	g.sync()
	require.True(t, heard, "rank %d waits", r)
	require.Equal(t, Failure{Kind: FailedReleased, Detail: [4]uint64{uint64(by)}}, g.ranks[r].Failure())
}

// TestHostsCombineMoreOften: a rank that combines more often than a remote one, which has
// released the operation, gets the error that a local one's word gives. There is no
// deadline.
func TestHostsCombineMoreOften(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for name, letGo := range map[string]func(*group, *op){
		"by Release": func(g *group, o *op) {
			require.NoError(g.t, g.ranks[1].SendRest(&o.inSlot(1, 0).Call))
			require.NoError(g.t, g.ranks[1].Release(&o.inSlot(1, 0).Call))
		},
		"by a dispatch":         func(g *group, o *op) { g.dispatchIn(o, 1, 2) },
		"by one into the slot":  func(g *group, o *op) { g.dispatchIn(o, 1, 0) },
		"by a combine":          func(g *group, o *op) { g.combineIn(o, 1, 1, false) },
		"before the other ends": nil,
	} {
		for size, over := range releasedOver {
			for form, flags := range map[string]protocol.Flags{"usual": 0, "in order": protocol.FlagOrdered, "flat": flat} {
				if testing.Short() && form != "in order" {
					continue
				}
				t.Run(fmt.Sprint(name, " ", size, " ", form), func(t *testing.T) {
					rng := rngOf(seed, 71, flags)
					emu.Schedule(rng.Uint64(), 16, 10)
					g, o, _ := apartOver(t, rng, over, flags, 3)
					o.inOne()
					for r := range g.ranks {
						g.dispatchIn(o, r, 0)
						g.dispatchIn(o, r, 1)
						g.combineIn(o, r, 0, false)
					}
					if letGo == nil {
						g.dispatchIn(o, 1, 2)
						g.ended(g.ranks[0], "what both do")
					} else {
						g.allEnded("what both do")
						letGo(g, o)
					}
					g.combineIn(o, 0, 0, true)
					g.awaitRelease(t, 0, 1)
				})
			}
		}
	}
}

// TestHostsCombineAsOften: ranks that combine equally often hear of no release, though
// one runs ahead of the other, and it of none that comes before the latest outputs.
func TestHostsCombineAsOften(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for size, over := range releasedOver {
		for form, flags := range map[string]protocol.Flags{"usual": 0, "in order": protocol.FlagOrdered, "flat": flat} {
			for n := range 2 {
				t.Run(fmt.Sprint(size, " ", form, " ", n), func(t *testing.T) {
					rng := rngOf(seed, 72, flags, n)
					emu.Schedule(rng.Uint64(), 16, 10)
					g, o, _ := apartOver(t, rng, over, flags, 2)
					o.inOne()
					for r := range g.ranks { // rank 1 is last
						g.combinesOften(o, r)
					}
					g.allEnded("all calls")
					for r := range g.ranks {
						o.checkIdentity(t, r)
					}
				})
			}
		}
	}
}

// combinesOften combines three operations, the first one thrice; two are under way at a
// time, and the last one is released.
func (g *group) combinesOften(o *op, r int) {
	g.dispatchIn(o, r, 0)
	g.dispatchIn(o, r, 1)
	for i := range 3 {
		g.combineIn(o, r, 0, i > 0)
	}
	g.combineIn(o, r, 1, false)
	g.combineIn(o, r, 1, true)
	g.dispatchIn(o, r, 0)
	g.combineIn(o, r, 0, false)
	c := &o.inSlot(r, 0).Call
	require.NoError(g.t, g.ranks[r].SendRest(c))
	require.NoError(g.t, g.ranks[r].Release(c))
}

// TestHostsHoldsAnOldOperation: an operation that a remote rank holds, while many others
// come and go, is none that it has released: however many begin behind it. When it
// does release it, others hear, unless another one of those is as old as one can
// tell.
func TestHostsHoldsAnOldOperation(t *testing.T) {
	emu, seed := driver(t), testenv.Seed(t)
	for name, c := range map[string]struct {
		skipped uint64 // operations that no rank makes
		twice   bool   // two old ones are held
	}{"age 19": {}, "age 70000": {skipped: 70_000}, "two of age 70000": {skipped: 70_000, twice: true}} {
		t.Run(name, func(t *testing.T) {
			rng := rngOf(seed, 73, 0)
			emu.Schedule(rng.Uint64(), 16, 10)
			g, o, _ := apartOver(t, rng, releasedOver["whole"], 0, 3)
			o.inOne()
			for r := range g.ranks {
				g.dispatchIn(o, r, 0)
				g.dispatchIn(o, r, 2)
			}
			g.allEnded("old operations")
			for r, m := range g.ranks {
				poke(g, m.private.Address(), func(s *state) { s.NextOp += c.skipped })
				for range 17 {
					g.dispatchIn(o, r, 1)
					g.combineIn(o, r, 1, false)
				}
				g.combineIn(o, r, 0, false)
				if !c.twice {
					g.combineIn(o, r, 2, false) // releases that in slot 0
				}
			}
			g.allEnded("young operations")
			for r := range g.ranks {
				o.checkIdentity(t, r)
			}
			if c.twice {
				for r := range g.ranks {
					g.combineIn(o, r, 0, true)
					g.combineIn(o, r, 2, false)
				}
				g.allEnded("as often")
				return
			}
			g.dispatchIn(o, 1, 1)
			g.combineIn(o, 0, 2, true)
			g.awaitRelease(t, 0, 1)
		})
	}
}

// TestHostsReleasedWithoutRoom: if the phases of operations come apart, a release does not
// wait for room, nor does the next dispatch into the slot wait because of it. That dispatch
// says what the release has left.
func TestHostsReleasedWithoutRoom(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 74, 0)
	emu.Schedule(rng.Uint64(), 16, 10)
	g, o, _ := narrowWith(t, rng, []int{0, 1}, 0, 1)
	// Rank 1's outputs, of nine tokens, are as many messages as a ring holds. Those of rank 0
	// are one: it makes one phase only, so that room that comes back late is of no use to it.
	for r, tokens := range []int{9, 1} {
		for i := range o.ids[r] {
			if o.ids[r][i] = -1; i < 2*tokens && i%2 == 0 {
				o.ids[r][i] = int64(2 * (1 - r))
			}
		}
	}
	for r := range g.ranks {
		g.dispatchIn(o, r, 0)
	}
	g.allEnded("a dispatch")
	s, err := layout.Of(o.shape)
	require.NoError(t, err)
	first := o.combine(0, g.ranks[0].Slab(0)+uint64(s.RowsOff))
	eventually(t, "rank 0 may send", func() bool { return g.hasRoom(g.ranks[0], 1) })
	require.NoError(t, g.ranks[0].Publish(first))
	g.ended(g.ranks[0], "the first phase of a combine") // which takes messages, too
	require.Zero(t, g.left(g.ranks[0]))
	g.combineIn(o, 1, 0, false)
	g.ended(g.ranks[1], "its combine")

	require.NoError(t, g.ranks[1].SendRest(&o.calls[1].Call))
	require.NoError(t, g.ranks[1].Release(&o.calls[1].Call))
	g.ended(g.ranks[1], "its release")
	require.Equal(t, 1, g.left(g.ranks[1]))
	next := o.calls[1]
	next.Ticket++
	require.NoError(t, g.ranks[1].Send(&next))
	g.ended(g.ranks[1], "the first phase of the next dispatch")
	require.Equal(t, 1, g.left(g.ranks[1]))
	require.NoError(t, g.ranks[0].Reduce(first))
	g.ended(g.ranks[0], "the second phase of a combine")
	require.Zero(t, g.ranks[0].report().Error, "%v", g.ranks[0].Failure())
	o.checkIdentity(t, 0)

	g.combineIn(o, 0, 0, true)
	require.NoError(t, g.ranks[1].Receive(&next))
	g.awaitRelease(t, 0, 1)
}

// TestHostsReleasedByOneOfThree: a rank hears of a release while it still waits for a
// third one's outputs. Its sum has those of the rank that has let go. That one gets no
// more outputs, for which it would make no room, and the next combine is the error.
func TestHostsReleasedByOneOfThree(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 75, 0)
	emu.Schedule(rng.Uint64(), 16, 15)
	g, o, _ := narrow(t, rng, []int{0, 1, 2}, 0)
	o.inOne()
	for i := range o.ids[1] {
		o.ids[1][i] = int64(i % 2) // all at rank 0
	}
	for i := range o.ids[2] {
		o.ids[2][i] = -1 // it makes no room for outputs yet
	}
	for r := range g.ranks {
		g.dispatchIn(o, r, 0)
	}
	g.allEnded("a dispatch")
	for r := range 2 {
		g.combineIn(o, r, 0, false)
	}
	require.NoError(t, g.ranks[1].SendRest(&o.calls[1].Call))
	require.NoError(t, g.ranks[1].Release(&o.calls[1].Call))
	word := &dl.At[arena](uintptr(g.ranks[0].Shared())).From[1].YReady[0]
	eventually(t, "rank 0 hears of it", func() bool { return atomic.LoadUint64(word) == 1<<16|0x8000|1 })
	g.combineIn(o, 2, 0, false)
	g.allEnded("a combine")
	for r := range g.ranks {
		o.checkIdentity(t, r)
	}
	g.combineIn(o, 0, 0, true)
	g.awaitRelease(t, 0, 1)
}

// TestHostsBehind: what a remote rank has not begun it has not released.
func TestHostsBehind(t *testing.T) {
	emu := driver(t)
	rng := rngOf(testenv.Seed(t), 76, 0)
	emu.Schedule(rng.Uint64(), 16, 10)
	g, o, _ := apartOver(t, rng, releasedOver["whole"], 0, 3)
	for slot := range 3 {
		require.NoError(t, g.ranks[0].Send(o.inSlot(0, slot)))
	}
	g.ended(g.ranks[0], "three first phases")
	for r, m := range g.ranks {
		for slot := range 3 {
			if r == 0 {
				require.NoError(t, m.Receive(o.inSlot(0, slot)))
			} else {
				g.dispatchIn(o, r, slot)
			}
		}
		for slot := range 3 {
			g.combineIn(o, r, slot, false)
		}
	}
	g.allEnded("three operations")
	for r := range g.ranks {
		o.checkIdentity(t, r)
	}
}
