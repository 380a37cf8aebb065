package chaos

import (
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// update plays the store of a rendezvous: it decides which ranks come, and the epoch
// begins only if every rank has said that it is connected. It returns the ranks that
// are in. A rank that dies or stops on the way is left out of the next attempt.
func (g *group) update(participants []*child, now func() bool, deadline time.Duration) []*child {
	g.t.Helper()
	for range 20 {
		participants = usable(participants)
		if len(participants) == 0 {
			return nil
		}
		g.seq++
		participants = g.gather(participants, now)
		if !g.connect(participants, deadline) {
			continue
		}
		if in := g.install(participants); len(in) > 0 {
			return in
		}
	}
	g.fatal("no rendezvous in 20 attempts")
	return nil
}

func usable(cs []*child) (able []*child) {
	for _, c := range cs {
		if !c.ended && !c.stopped && !c.endExpected {
			able = append(able, c)
		}
	}
	return able
}

// answered reports whether a child has said one of two things in this rendezvous,
// or is not able to.
func (g *group) answered(c *child, what, or string) bool {
	said := c.answer.Seq == g.seq && (c.answer.What == what || c.answer.What == or)
	return said || c.ended || c.stopped || c.endExpected
}

func (g *group) allAnswered(cs []*child, what, or string) func() bool {
	return func() bool {
		for _, c := range cs {
			if !g.answered(c, what, or) {
				return false
			}
		}
		return true
	}
}

func (g *group) said(cs []*child, what string) (who []*child) {
	for _, c := range cs {
		if c.answer.Seq == g.seq && c.answer.What == what {
			who = append(who, c)
		}
	}
	return who
}

func (g *group) gather(participants []*child, now func() bool) []*child {
	for _, c := range participants {
		c.fenced = false
		g.tell(c, command{What: "prepare", Seq: g.seq, Now: now()})
	}
	g.await("metadata", g.allAnswered(participants, "metadata", "metadata"))
	return g.said(participants, "metadata")
}

func (g *group) connect(participants []*child, deadline time.Duration) bool {
	all := make([][]byte, g.ranks)
	for _, c := range participants {
		all[c.rank] = c.answer.Data
	}
	for _, c := range participants {
		g.tell(c, command{What: "connect", Seq: g.seq, All: all, Deadline: deadline})
	}
	g.await("connections", g.allAnswered(participants, "connected", "failed"))
	return len(g.said(participants, "connected")) == len(participants)
}

// install begins the epoch. A rank that ends now was in it.
func (g *group) install(participants []*child) []*child {
	g.term++
	g.settleIn(participants)
	clear(g.current)
	g.agreed = setOf(participants)
	for _, c := range participants {
		g.current[c.rank] = c
		g.tell(c, command{What: "install", Seq: g.seq, Term: g.term})
	}
	g.await("installation", func() bool {
		for _, c := range participants {
			if !g.answered(c, "installed", "installed") && !c.fenced {
				return false
			}
		}
		return true
	})
	return g.said(participants, "installed")
}

// settleIn notes which group the participants belong to: the latest one if one of them is
// of it already, else a new one.
func (g *group) settleIn(participants []*child) {
	old := false
	for _, c := range participants {
		old = old || c.home == g.founded && g.founded > 0
	}
	if !old {
		g.founded++
	}
	for _, c := range participants {
		c.home = g.founded
	}
}

// found makes the first epoch of processes that are all new.
func (g *group) found(ranks rankset.Set) {
	g.t.Helper()
	var participants []*child
	for r := range ranks.All() {
		participants = append(participants, g.start(r))
	}
	g.update(participants, never, testTimeout)
}

func never() bool { return false }

// setOf returns the ranks of some children.
func setOf(cs []*child) (set rankset.Set) {
	for _, c := range cs {
		set = set.With(c.rank)
	}
	return set
}
