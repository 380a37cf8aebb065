package multihost

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// agreement is one rank's part in deciding the membership of the group, in one epoch:
// acceptor and proposer of Paxos, with member sets as values. It is pure: the caller
// brings messages, the ends of connections and the time, and sends what is in the outbox.
// docs/protocol.md, "Across hosts", has the rules and why they are safe.
//
// The group goes through a chain of agreed sets, each a part of the one before. From each
// to the next there is one instance of Paxos: a proposer needs a quorum of the present
// set to promise, then to accept. Besides, any rank may leave at once. The word that is
// shown is the agreed set without the ranks that have left.
type agreement struct {
	self  int
	rules rules

	set  rankset.Set // the latest agreed set that this rank knows of
	left rankset.Set // ranks that have taken themselves out

	// What this rank knows by itself.
	gone         rankset.Set                 // ranks with an ended connection, or that have said that they leave
	unresponsive rankset.Set                 // ranks that have not been heard for the bound
	lastHeard    [rankset.MaxRanks]time.Time // when last

	promised, accepted ballot      // of the step from set to the next one
	value              rankset.Set // what was accepted

	turn proposal
	want want
	need need
	rows [rankset.MaxRanks]row // what others have said

	outbox []agreementMessage

	despaired *despair // why it has left by itself; nil: it has not

	ballots, agreed uint64 // begun by this rank; sets adopted: for callers that count
}

// rules are the times of an agreement.
type rules struct {
	bound time.Duration // unresponsive after so long
	retry time.Duration // a proposal that got no quorum is tried again
	lapse time.Duration // a want lapses when it is not repeated
}

// The slower bounds, in multiples of rules.bound.
const (
	pairBounds  = 2 // two ranks that do not hear each other, while others hear both
	fenceBounds = 2 // a rank that wants a change and cannot get one leaves
	stuckBounds = 8 // the same, where there seems to be a quorum
)

// ballot is a Paxos proposal's number: round, then rank. 0: none.
type ballot uint64

const ballotRankBits = 6

const _ uint = 1<<ballotRankBits - rankset.MaxRanks

func newBallot(round uint64, rank int) ballot { return ballot(round<<ballotRankBits | uint64(rank)) }

func (b ballot) round() uint64 { return uint64(b) >> ballotRankBits }

// want is a change that a rank asks for.
type want struct {
	word     rankset.Set // the word in which it was asked for
	removals rankset.Set
	blamed   rankset.Set // of these, the ranks that the failure detector blames: they are heard
	renewed  time.Time
}

// need is that this rank has wanted changes of the agreed set, one or another. It goes on
// when the word changes because others leave. So a rank that is stuck with this one ends
// about when it does, and not one after the other.
type need struct {
	since, renewed time.Time // zero: there is none
}

// row is the latest that a rank has said of itself.
type row struct {
	unresponsive rankset.Set
	word         rankset.Set
	removals     rankset.Set
	blamed       rankset.Set
	at           time.Time
	suspects     [rankset.MaxRanks]time.Time // since when it has wanted out a rank that this rank hears
}

type stage uint8

const (
	idle stage = iota
	preparing
	accepting
)

// proposal is what this rank is trying to have agreed on.
type proposal struct {
	stage     stage
	ballot    ballot
	until     time.Time
	value     rankset.Set
	blamed    rankset.Set // ranks that are out for another reason than silence or death
	inherited bool        // the value is an earlier proposer's
	best      ballot
	voters    rankset.Set
	gone      rankset.Set // ranks that all voters know to be gone
}

func newAgreement(self int, set rankset.Set, rules rules, now time.Time) *agreement {
	c := &agreement{self: self, set: set, rules: rules}
	for r := range c.lastHeard {
		c.lastHeard[r] = now
	}
	return c
}

// start begins the time in which every rank has to be heard.
func (c *agreement) start(now time.Time) {
	for r := range c.lastHeard {
		c.lastHeard[r] = now
	}
	c.unresponsive = rankset.Set{}
}

// word is the member set as this rank knows it.
func (c *agreement) word() rankset.Set { return c.set.Minus(c.left) }

func (c *agreement) isIn() bool { return c.word().Has(c.self) }

// leave takes this rank out.
func (c *agreement) leave() {
	if !c.left.Has(c.self) {
		c.left = c.left.With(c.self)
		c.turn, c.want, c.need = proposal{}, want{}, need{}
		c.notifyAll()
	}
}

// over is called when the next epoch begins. It tells the ranks that have not come to the
// rendezvous of that epoch that they are out of this one. If the members that have come
// are fewer than those, it does nothing: the others may go on then.
func (c *agreement) over(came rankset.Set) {
	members := c.set.Or(c.left)
	out := c.set.Minus(c.left).Minus(c.gone).Minus(came)
	if members.And(came).Len() < out.Len() {
		return
	}
	m := c.message(kindState)
	m.set = m.set.And(came)
	for r := range out.All() {
		m.to = r
		c.outbox = append(c.outbox, m)
	}
}

// ask notes that this rank wants ranks out of the word.
func (c *agreement) ask(now time.Time, word, removals rankset.Set) {
	if !c.isIn() || word != c.word() || !removals.Minus(word).Empty() {
		return
	}
	blamed := removals.Minus(c.gone.Or(c.unresponsive))
	same := c.want.word == word && c.want.removals == removals && c.want.blamed == blamed
	if !same {
		c.want = want{word: word, removals: removals, blamed: blamed}
	}
	if c.want.renewed, c.need.renewed = now, now; c.need.since.IsZero() {
		c.need.since = now
	}
	if !same {
		c.notifyAll()
		c.propose(now)
	}
}

// ended notes that a rank's connection has ended: nothing more will come.
func (c *agreement) ended(now time.Time, rank int) {
	c.gone = c.gone.With(rank)
	c.unresponsive = c.unresponsive.Without(rank)
	c.turn.until = time.Time{} // its vote will not come
	c.propose(now)
}

// excuse moves the last sign of life of every rank forward, but not past now: this rank
// itself was not running.
func (c *agreement) excuse(now time.Time, d time.Duration) {
	for r := range c.lastHeard {
		if c.lastHeard[r] = c.lastHeard[r].Add(d); c.lastHeard[r].After(now) {
			c.lastHeard[r] = now
		}
	}
}

// tick looks at the time.
func (c *agreement) tick(now time.Time) {
	for r := range c.set.Minus(c.gone).Without(c.self).All() {
		if c.unresponsive = c.unresponsive.Without(r); now.Sub(c.lastHeard[r]) >= c.rules.bound {
			c.unresponsive = c.unresponsive.With(r)
		}
	}
	if w := &c.want; !w.removals.Empty() && (w.word != c.word() || now.Sub(w.renewed) > c.rules.lapse) {
		*w = want{}
	}
	if now.Sub(c.need.renewed) > c.rules.lapse {
		c.need = need{}
	}
	c.despair(now)
	c.propose(now)
}

// despair takes this rank out when the change that it needs cannot come.
func (c *agreement) despair(now time.Time) {
	if c.want.removals.Empty() {
		return
	}
	waited := now.Sub(c.need.since)
	reach := c.set.Minus(c.left).Minus(c.gone).Minus(c.unresponsive)
	if waited >= stuckBounds*c.rules.bound ||
		waited >= fenceBounds*c.rules.bound && !c.quorum(reach, c.gone) {
		c.despaired = &despair{
			set: c.set, removals: c.want.removals, unresponsive: c.set.And(c.unresponsive).Minus(c.left.Or(c.gone)),
			ended: c.set.And(c.gone).Minus(c.left), reach: reach, waited: waited, quorum: c.quorum(reach, c.gone),
		}
		c.leave()
	}
}

// despair is why a rank has left by itself.
type despair struct {
	set, removals, unresponsive, ended, reach rankset.Set
	waited                                    time.Duration
	quorum                                    bool
}

// String is for the user of a rank that is fenced.
func (d *despair) String() string {
	if d.quorum {
		return fmt.Sprintf("%s had to go, and %s did not agree on that within %v",
			list(d.removals), list(d.reach), d.waited.Round(time.Millisecond))
	}
	var why string
	if !d.unresponsive.Empty() {
		why += list(d.unresponsive) + " did not answer, "
	}
	if !d.ended.Empty() {
		why += list(d.ended) + " ended, "
	}
	if why != "" {
		why += "and "
	}
	return fmt.Sprintf("%s%s of %s may not decide alone: more than half may, or the half with rank %d",
		why, list(d.reach), list(d.set), d.set.Min())
}

// list names ranks.
func list(ranks rankset.Set) string {
	var names []string
	for r := range ranks.All() {
		names = append(names, strconv.Itoa(r))
	}
	if len(names) == 1 {
		return "rank " + names[0]
	}
	return "ranks " + strings.Join(names, ", ")
}

// quorum says whether these voters can decide. Any two quorums of a set have a voter in
// common, or the voters of one are all gone: and then the remaining ranks have heard all
// that those ever said.
func (c *agreement) quorum(voters, gone rankset.Set) bool {
	voters = voters.And(c.set)
	all, n := c.set.Len(), voters.Len()
	switch {
	case n == 0:
		return false
	case 2*n > all, c.set.Minus(voters.Or(gone)).Empty():
		return true
	case 2*n == all:
		return voters.Has(c.set.Min())
	}
	return false
}
