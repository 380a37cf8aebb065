package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// TestOneLostRankCostsOne: a rank stops at any point of a call, and only this rank is
// lost. The others wait for one another too, and all of them have
// the same deadline. Then the rank comes back with the buffer that it has.
func TestOneLostRankCostsOne(t *testing.T) {
	for at, suspicions := range []int{allLocal: 30, allRemote: 10, split: 10} {
		t.Run(place(at).String(), func(t *testing.T) { stopSome(t, place(at), numFaults("MOEWIRE_SUSPICIONS", suspicions)) })
	}
}

func stopSome(t *testing.T, at place, suspicions int) {
	c := newChaos(t, at, 4, faultCounts{})
	for c.count < suspicions {
		c.stopOne()
	}
	c.finish()
	t.Logf("%d ranks stopped, %d late ranks lost too, %d others\n%v", suspicions, c.early, c.unfair, c.struck)
	require.Zero(t, c.unfair, "MOEWIRE_SEED=%d", c.seed)
}

// stopOne stops one rank of four and expects three to go on.
func (c *chaos) stopOne() {
	c.pass(time.Duration(c.r.IntN(5)) * time.Millisecond)
	all, points := c.playing(), c.common()
	v := all[c.r.IntN(len(all))]
	c.arm(v, fault{Kind: stop, Point: points[c.r.IntN(len(points))], Nth: 1 + c.r.Int64N(30)})
	if !c.within(150*time.Millisecond, func() bool { return v.fired != nil }) {
		c.disarm(v)
	}
	if v.fired == nil {
		return
	}
	c.hits(v)
	c.settle(rankset.Of(v.rank), rankset.Set{})
	v.struck = false
	c.resume(v)
	c.await("the fenced rank to say so", func() bool { return v.fenced })
	c.update(all, never, testTimeout)
	c.settle(rankset.Set{}, rankset.Set{})
}

// TestNoticed: both ranks with one wrong bit in their combine are noticed. So the
// oracle notices such mistakes.
func TestNoticed(t *testing.T) {
	for _, at := range []place{allLocal, allRemote} {
		t.Run(at.String(), func(t *testing.T) { noticeAt(t, at) })
	}
}

func noticeAt(t *testing.T, at place) {
	g := newGroup(t, options{ranks: 2, place: at, seed: newSeed(), timeout: deadline, corrupt: true})
	g.found(rankset.Of(0, 1))
	for _, c := range g.children {
		g.await("a rank to notice", func() bool { return c.answer.What == "wrong" || c.fenced || c.ended })
		require.Contains(t, c.answer.Text, "differs")
	}
}
