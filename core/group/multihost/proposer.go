package multihost

import (
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// arbiter is the proposer of a change, as this rank sees it: the
// lowest member that can be heard.
func (c *agreement) arbiter() int {
	able := c.set.Minus(c.left).Minus(c.gone).Minus(c.unresponsive)
	if able.Empty() {
		return -1
	}
	return able.Min()
}

// propose starts, or starts again, what this rank has to have decided.
func (c *agreement) propose(now time.Time) {
	c.watchPairs(now)
	if c.turn.stage != idle && now.Before(c.turn.until) {
		return
	}
	if c.arbiter() != c.self || !c.isIn() {
		c.turn.stage = idle
		return
	}
	removals, blamed := c.removals(now)
	if removals.Empty() || c.set.Minus(removals).Empty() {
		c.turn.stage = idle
		return
	}
	c.ballots++
	round := max(c.promised.round(), c.turn.ballot.round()) + 1
	c.turn = proposal{
		stage: preparing, ballot: newBallot(round, c.self), value: c.set.Minus(removals), blamed: blamed,
		until: now.Add(c.rules.retry * time.Duration(1+c.self%4)), gone: rankset.Upto(rankset.MaxRanks),
	}
	c.toAll(now, c.message(kindPrepare))
}

// removals are those that should go, and why.
func (c *agreement) removals(now time.Time) (removals, blamed rankset.Set) {
	removals = c.gone.And(c.set)
	word := c.word()
	for r := range c.rows {
		w := &c.rows[r]
		if r == c.self || !word.Has(r) || w.word != word || now.Sub(w.at) > c.rules.lapse {
			continue
		}
		removals = removals.Or(c.believe(w.removals, w.blamed, &blamed))
	}
	if !c.want.removals.Empty() && c.want.word == word {
		removals = removals.Or(c.believe(c.want.removals, c.want.blamed, &blamed))
	}
	pairs := c.pairRemovals(now)
	return removals.Or(pairs), blamed.Or(pairs)
}

// believe takes over what a failure detector has found: all ranks that it blames. Other
// ranks it only calls unresponsive. If this rank finds one of those unresponsive, too,
// believe takes all ranks that this rank finds unresponsive.
func (c *agreement) believe(removals, theirs rankset.Set, blamed *rankset.Set) rankset.Set {
	*blamed = blamed.Or(theirs.And(removals).And(c.set))
	out := theirs.And(removals)
	if !removals.Minus(theirs).And(c.unresponsive).Empty() {
		out = out.Or(c.unresponsive)
	}
	return out.And(c.set)
}

// watchPairs notes since when a rank has wanted one out that others hear.
func (c *agreement) watchPairs(now time.Time) {
	for a := range c.set.All() {
		suspected := c.suspected(now, a)
		for v := range c.rows[a].suspects {
			at := &c.rows[a].suspects[v]
			switch {
			case !suspected.Has(v):
				*at = time.Time{}
			case at.IsZero():
				*at = now
			}
		}
	}
}

// suspected are the ranks that a rank wants out because it does not hear them.
func (c *agreement) suspected(now time.Time, a int) rankset.Set {
	word := c.word()
	if a == c.self {
		if c.want.word != word {
			return rankset.Set{}
		}
		return c.want.removals.Minus(c.want.blamed).And(c.set)
	}
	w := &c.rows[a]
	if w.word != word || now.Sub(w.at) > c.rules.lapse || c.gone.Or(c.unresponsive).Has(a) {
		return rankset.Set{}
	}
	return w.removals.Minus(w.blamed).Minus(c.gone).Minus(c.unresponsive).And(c.set)
}

// pairRemovals decides between two ranks that others hear, but not each the
// other: the higher one goes, or the one that alone complains.
func (c *agreement) pairRemovals(now time.Time) (removals rankset.Set) {
	for a := range c.set.All() {
		for v := range c.set.All() {
			since := c.rows[a].suspects[v]
			if since.IsZero() {
				continue
			}
			bound := pairBounds * c.rules.bound
			if a == c.self && v < a {
				bound *= 2 // it is the lower one's business
			}
			if now.Sub(since) < bound {
				continue
			}
			removals = removals.With(c.loser(a, v))
		}
	}
	return removals
}

func (c *agreement) loser(suspecter, v int) int {
	if suspecter == c.self {
		return v
	}
	if mutual := c.rows[v].unresponsive.Has(suspecter); mutual || v == c.self {
		return max(suspecter, v)
	}
	return suspecter
}

// promise counts an answer to a prepare.
func (c *agreement) promise(now time.Time, m *agreementMessage) {
	t := &c.turn
	if t.stage != preparing || m.ballot != t.ballot || m.set != c.set {
		return
	}
	t.voters = t.voters.With(m.from)
	t.gone = t.gone.And(m.gone)
	if m.accepted > t.best {
		t.best, t.value, t.inherited = m.accepted, m.value, true
	}
	if !c.quorum(t.voters, t.gone) {
		return
	}
	t.stage, t.voters, t.gone = accepting, rankset.Set{}, rankset.Upto(rankset.MaxRanks)
	c.toAll(now, c.message(kindAccept))
}

// agree counts an acceptance; with a quorum the next set is agreed on.
func (c *agreement) agree(now time.Time, m *agreementMessage) {
	t := &c.turn
	if t.stage != accepting || m.ballot != t.ballot || m.set != c.set {
		return
	}
	t.voters = t.voters.With(m.from)
	t.gone = t.gone.And(m.gone)
	if c.quorum(t.voters, t.gone) {
		before := c.set
		c.adopt(t.value)
		c.notify(before) // the ranks that are out, too
		c.propose(now)
	}
}

// adopt goes on to an agreed set.
func (c *agreement) adopt(set rankset.Set) {
	c.set = set
	c.agreed++
	c.promised, c.accepted, c.value = 0, 0, rankset.Set{}
	c.turn, c.want, c.need = proposal{}, want{}, need{}
	c.rows = [rankset.MaxRanks]row{}
}
