package chaos

import (
	"slices"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// change updates the membership: the playing ranks, or most of them; fenced ranks that
// return with the memory that they have; new processes in the place of others. With
// struck, a rank is struck on the way.
func (c *chaos) change(struck bool) {
	participants := c.participants()
	var target *child
	if struck && len(participants) > 1 {
		target = c.armOne(participants)
	}
	members := c.playing()
	in := c.update(participants, func() bool { return c.r.IntN(3) == 0 }, c.place.connectIn())
	c.updates++
	late := c.afterStruck(target)
	leftOut := leftOut(members, participants, in)
	c.await("those who were left out to be fenced", func() bool { return len(usable(leftOut)) == len(fenced(leftOut)) })
	if len(c.playing()) == 0 { // no rank is left
		c.foundAgain()
	}
	c.settle(c.absent(), late)
	c.dismiss()
}

// leftOut returns the members that were not to come. An update ends the epoch for
// them, unless fewer than half of the members have come.
func leftOut(members, participants, in []*child) (out []*child) {
	come := 0
	for _, p := range members {
		if slices.Contains(in, p) {
			come++
		}
		if !slices.Contains(participants, p) {
			out = append(out, p)
		}
	}
	if 2*come < max(1, len(members)) {
		return nil
	}
	return out
}

func fenced(cs []*child) (who []*child) {
	for _, c := range usable(cs) {
		if c.fenced {
			who = append(who, c)
		}
	}
	return who
}

// armOne plans a fault in a rendezvous.
func (c *chaos) armOne(participants []*child) *child {
	v := participants[c.r.IntN(len(participants))]
	c.await("the target to be there", func() bool { return v.hello || v.ended })
	f := c.draw(c.inRendezvous(), 1)
	if f.Kind == delay {
		f.For = c.place.connectIn() * 3 / 2
	}
	c.arm(v, f)
	return v
}

// afterStruck counts a fault in a rendezvous, or takes it back, and returns the ranks
// that may be late because of it.
func (c *chaos) afterStruck(v *child) (late rankset.Set) {
	if v == nil {
		return rankset.Set{}
	}
	if !c.within(20*time.Millisecond, func() bool { return v.fired != nil || v.ended }) {
		c.disarm(v)
	}
	if v.fired == nil {
		c.missed++
		return rankset.Set{}
	}
	c.hits(v)
	v.struck = false
	if v.fault.Kind == delay {
		late = rankset.Of(v.rank)
	}
	return late
}

// absent returns the members of the new epoch that were struck before or while
// they began it: the others find that out.
func (c *chaos) absent() (set rankset.Set) {
	for _, p := range c.current {
		if p != nil && (p.endExpected || p.stopped || p.ended) {
			set = set.With(p.rank)
		}
	}
	return set
}

// participants decides which ranks come to the next rendezvous.
func (c *chaos) participants() (cs []*child) {
	some := c.playing()
	for r := range c.ranks {
		switch p := c.candidate(r); {
		case p == nil:
			if len(some) == 0 || c.r.IntN(8) != 0 { // else it stays empty for a while
				cs = append(cs, c.start(r))
			}
		case p.playing && c.r.IntN(16) == 0 && len(cs)+len(some) > 2: // it leaves
		default:
			cs = append(cs, p)
		}
	}
	if len(cs) < 2 {
		return append(some, c.fresh(some)...)
	}
	return cs
}

// candidate returns the process that can come for a rank: one that plays, or was
// fenced and returns.
func (c *chaos) candidate(r int) *child {
	if p := c.current[r]; p != nil && p.playing && !p.ended && !p.stopped && !p.endExpected {
		return p
	}
	for _, p := range c.children {
		if p.rank == r && !p.ended && !p.endExpected && !p.closing && p.home == c.founded && c.r.IntN(2) == 0 {
			if p.stopped {
				c.resume(p)
			}
			return p
		}
	}
	return nil
}

// fresh starts processes for all ranks that have none among some.
func (c *chaos) fresh(some []*child) (cs []*child) {
	for r := range c.ranks {
		if !setOf(some).Has(r) {
			cs = append(cs, c.start(r))
		}
	}
	return cs
}

// foundAgain begins anew with processes that are all new.
func (c *chaos) foundAgain() {
	c.log("nobody is left")
	clear(c.current)
	c.found(rankset.Upto(c.ranks))
}

// dismiss closes processes that were replaced, and sometimes others that are
// no members.
func (c *chaos) dismiss() {
	for _, p := range c.children {
		if p.ended || p.endExpected || p.closing || c.current[p.rank] == p {
			continue
		}
		if p.home < c.founded || c.current[p.rank] != nil && c.r.IntN(2) == 0 || c.r.IntN(8) == 0 {
			c.resume(p)
			p.closing = true
			c.tell(p, command{What: "close"})
		}
	}
}
