package mixed

import (
	"math/bits"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// arbiter is the rank whose business a change is, as this rank sees it: the
// lowest member that can be heard.
func (c *council) arbiter() int {
	able := c.set &^ c.left &^ c.gone &^ c.silent
	if able == 0 {
		return -1
	}
	return bits.TrailingZeros64(able)
}

// propose starts, or starts again, what this rank has to have decided.
func (c *council) propose(now time.Time) {
	c.watchPairs(now)
	if c.turn.stage != idle && now.Before(c.turn.until) {
		return
	}
	if c.arbiter() != c.self || !c.isIn() {
		c.turn.stage = idle
		return
	}
	victims, judged := c.victims(now)
	if victims == 0 || c.set&^victims == 0 {
		c.turn.stage = idle
		return
	}
	c.ballots++
	round := max(c.promised.round(), c.turn.ballot.round()) + 1
	c.turn = proposal{
		stage: preparing, ballot: newBallot(round, c.self), value: c.set &^ victims, judged: judged,
		until: now.Add(c.rules.retry * time.Duration(1+c.self%4)), gone: ^uint64(0),
	}
	c.toAll(now, c.letter(kindPrepare))
}

// victims are those that should go, and why.
func (c *council) victims(now time.Time) (victims, judged uint64) {
	victims = c.gone & c.set
	word := c.word()
	for r := range c.rows {
		w := &c.rows[r]
		if r == c.self || word>>r&1 == 0 || w.word != word || now.Sub(w.at) > c.rules.patient {
			continue
		}
		victims |= c.believe(w.victims, w.judged, &judged)
	}
	if c.want.victims != 0 && c.want.word == word {
		victims |= c.believe(c.want.victims, c.want.judged, &judged)
	}
	pairs := c.pairVictims(now)
	return victims | pairs, judged | pairs
}

// believe takes over what a trial has found, but of who is only said to be
// silent no more than this rank finds silent, too: and all of these.
func (c *council) believe(victims, theirs uint64, judged *uint64) uint64 {
	*judged |= theirs & victims & c.set
	out := theirs & victims
	if victims&^theirs&c.silent != 0 {
		out |= c.silent
	}
	return out & c.set
}

// watchPairs notes since when a rank has wanted one out that others hear.
func (c *council) watchPairs(now time.Time) {
	for a := range c.set64() {
		accused := c.accused(now, a)
		for v := range c.rows[a].accuses {
			at := &c.rows[a].accuses[v]
			switch {
			case accused>>v&1 == 0:
				*at = time.Time{}
			case at.IsZero():
				*at = now
			}
		}
	}
}

// set64 ranges over the agreed set.
func (c *council) set64() func(func(int) bool) {
	return func(yield func(int) bool) {
		for rest := c.set; rest != 0; rest &= rest - 1 {
			if !yield(bits.TrailingZeros64(rest)) {
				return
			}
		}
	}
}

// accused are those whom a rank wants out because it does not hear them.
func (c *council) accused(now time.Time, a int) uint64 {
	word := c.word()
	if a == c.self {
		if c.want.word != word {
			return 0
		}
		return c.want.victims &^ c.want.judged & c.set
	}
	w := &c.rows[a]
	if w.word != word || now.Sub(w.at) > c.rules.patient || (c.gone|c.silent)>>a&1 == 1 {
		return 0
	}
	return w.victims &^ w.judged &^ c.gone &^ c.silent & c.set
}

// pairVictims decides between two ranks that others hear, but not each the
// other: the higher one goes, or the one that alone complains.
func (c *council) pairVictims(now time.Time) (victims uint64) {
	for a := range c.set64() {
		for v := range c.set64() {
			since := c.rows[a].accuses[v]
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
			victims |= 1 << c.loser(a, v)
		}
	}
	return victims
}

func (c *council) loser(accuser, v int) int {
	if accuser == c.self {
		return v
	}
	if mutual := c.rows[v].silent>>accuser&1 == 1; mutual || v == c.self {
		return max(accuser, v)
	}
	return accuser
}

// promise counts an answer to a prepare.
func (c *council) promise(now time.Time, m *letter) {
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
	c.toAll(now, c.letter(kindAccept))
}

// known are those whom the sender knows to be gone by itself.
func (c *council) known(m *letter) uint64 {
	if c.rules.mutant == deadByHearsay {
		return c.gone
	}
	return m.gone
}

// agree counts an acceptance; with a quorum the next set is agreed on.
func (c *council) agree(now time.Time, m *letter) {
	t := &c.turn
	if t.stage != accepting || m.ballot != t.ballot || m.set != c.set {
		return
	}
	t.voters |= 1 << m.from
	t.gone &= c.known(m)
	if c.quorum(t.voters, t.gone) {
		before := c.set
		c.adopt(t.value)
		c.tell(before) // those who are out, too
		c.propose(now)
	}
}

// adopt goes on to an agreed set.
func (c *council) adopt(set uint64) {
	c.set = set
	c.agreed++
	c.promised, c.accepted, c.value = 0, 0, 0
	c.turn, c.want, c.need = proposal{}, want{}, need{}
	c.rows = [transport.MaxRanks]row{}
}
