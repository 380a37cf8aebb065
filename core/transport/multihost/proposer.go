package multihost

import (
	"math/bits"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// arbiter is the proposer of a change, as this rank sees it: the
// lowest member that can be heard.
func (c *agreement) arbiter() int {
	able := c.set &^ c.left &^ c.gone &^ c.unresponsive
	if able == 0 {
		return -1
	}
	return bits.TrailingZeros64(able)
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
	if removals == 0 || c.set&^removals == 0 {
		c.turn.stage = idle
		return
	}
	c.ballots++
	round := max(c.promised.round(), c.turn.ballot.round()) + 1
	c.turn = proposal{
		stage: preparing, ballot: newBallot(round, c.self), value: c.set &^ removals, blamed: blamed,
		until: now.Add(c.rules.retry * time.Duration(1+c.self%4)), gone: ^uint64(0),
	}
	c.toAll(now, c.message(kindPrepare))
}

// removals are those that should go, and why.
func (c *agreement) removals(now time.Time) (removals, blamed uint64) {
	removals = c.gone & c.set
	word := c.word()
	for r := range c.rows {
		w := &c.rows[r]
		if r == c.self || word>>r&1 == 0 || w.word != word || now.Sub(w.at) > c.rules.lapse {
			continue
		}
		removals |= c.believe(w.removals, w.blamed, &blamed)
	}
	if c.want.removals != 0 && c.want.word == word {
		removals |= c.believe(c.want.removals, c.want.blamed, &blamed)
	}
	pairs := c.pairRemovals(now)
	return removals | pairs, blamed | pairs
}

// believe takes over what a failure detector has found: all ranks that it blames. Other
// ranks it only calls unresponsive. If this rank finds one of those unresponsive, too,
// believe takes all ranks that this rank finds unresponsive.
func (c *agreement) believe(removals, theirs uint64, blamed *uint64) uint64 {
	*blamed |= theirs & removals & c.set
	out := theirs & removals
	if removals&^theirs&c.unresponsive != 0 {
		out |= c.unresponsive
	}
	return out & c.set
}

// watchPairs notes since when a rank has wanted one out that others hear.
func (c *agreement) watchPairs(now time.Time) {
	for a := range c.set64() {
		suspected := c.suspected(now, a)
		for v := range c.rows[a].suspects {
			at := &c.rows[a].suspects[v]
			switch {
			case suspected>>v&1 == 0:
				*at = time.Time{}
			case at.IsZero():
				*at = now
			}
		}
	}
}

// set64 ranges over the agreed set.
func (c *agreement) set64() func(func(int) bool) {
	return func(yield func(int) bool) {
		for rest := c.set; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

// suspected are the ranks that a rank wants out because it does not hear them.
func (c *agreement) suspected(now time.Time, a int) uint64 {
	word := c.word()
	if a == c.self {
		if c.want.word != word {
			return 0
		}
		return c.want.removals &^ c.want.blamed & c.set
	}
	w := &c.rows[a]
	if w.word != word || now.Sub(w.at) > c.rules.lapse || (c.gone|c.unresponsive)>>a&1 == 1 {
		return 0
	}
	return w.removals &^ w.blamed &^ c.gone &^ c.unresponsive & c.set
}

// pairRemovals decides between two ranks that others hear, but not each the
// other: the higher one goes, or the one that alone complains.
func (c *agreement) pairRemovals(now time.Time) (removals uint64) {
	for a := range c.set64() {
		for v := range c.set64() {
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
			removals |= 1 << c.loser(a, v)
		}
	}
	return removals
}

func (c *agreement) loser(suspecter, v int) int {
	if suspecter == c.self {
		return v
	}
	if mutual := c.rows[v].unresponsive>>suspecter&1 == 1; mutual || v == c.self {
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
	t.voters |= 1 << m.from
	t.gone &= c.known(m)
	if m.accepted > t.best && c.rules.mutant != forgetAccepted {
		t.best, t.value, t.inherited = m.accepted, m.value, true
	}
	if !c.quorum(t.voters, t.gone) {
		return
	}
	t.stage, t.voters, t.gone = accepting, 0, ^uint64(0)
	c.toAll(now, c.message(kindAccept))
}

// known are the ranks that the sender knows to be gone by itself.
func (c *agreement) known(m *agreementMessage) uint64 {
	if c.rules.mutant == deadByHearsay {
		return c.gone
	}
	return m.gone
}

// agree counts an acceptance; with a quorum the next set is agreed on.
func (c *agreement) agree(now time.Time, m *agreementMessage) {
	t := &c.turn
	if t.stage != accepting || m.ballot != t.ballot || m.set != c.set {
		return
	}
	t.voters |= 1 << m.from
	t.gone &= c.known(m)
	if c.quorum(t.voters, t.gone) {
		before := c.set
		c.adopt(t.value)
		c.notify(before) // the ranks that are out, too
		c.propose(now)
	}
}

// adopt goes on to an agreed set.
func (c *agreement) adopt(set uint64) {
	c.set = set
	c.agreed++
	c.promised, c.accepted, c.value = 0, 0, 0
	c.turn, c.want, c.need = proposal{}, want{}, need{}
	c.rows = [rankset.MaxRanks]row{}
}
