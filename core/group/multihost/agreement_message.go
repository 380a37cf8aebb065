package multihost

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// agreementMessage is a message between agreements. Each one carries all that its sender
// would have others know.
type agreementMessage struct {
	kind         messageKind
	to, from     int // not in the bytes
	inherited    bool
	set          rankset.Set
	left         rankset.Set
	gone         rankset.Set
	unresponsive rankset.Set
	word         rankset.Set // of the want
	removals     rankset.Set
	blamed       rankset.Set // of a want; of a proposal: ranks that are out for another reason than silence
	ballot       ballot
	accepted     ballot
	value        rankset.Set
}

type messageKind uint8

const (
	kindState messageKind = iota + 1
	kindPrepare
	kindPromise
	kindAccept
	kindAccepted
	numMessageKinds
)

// agreementMessageBytes is an agreement message's length: kind, inherited, then the words.
const agreementMessageBytes = 2 + 10*8

// words are the words of a message in their order.
func (m *agreementMessage) words() [10]uint64 {
	return [...]uint64{
		m.set.Word(), m.left.Word(), m.gone.Word(), m.unresponsive.Word(), m.word.Word(), m.removals.Word(), m.blamed.Word(),
		uint64(m.ballot), uint64(m.accepted), m.value.Word(),
	}
}

func (m *agreementMessage) append(b []byte) []byte {
	var inherited byte
	if m.inherited {
		inherited = 1
	}
	b = append(b, byte(m.kind), inherited)
	for _, w := range m.words() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

var errAgreementMessage = errors.New("malformed agreement message")

func parseAgreementMessage(b []byte) (m agreementMessage, err error) {
	if len(b) != agreementMessageBytes || b[0] == 0 || b[0] >= byte(numMessageKinds) || b[1] > 1 {
		return agreementMessage{}, errAgreementMessage
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[2+8*i:]) }
	set := func(i int) rankset.Set { return rankset.FromWord(word(i)) }
	return agreementMessage{
		kind: messageKind(b[0]), inherited: b[1] == 1,
		set: set(0), left: set(1), gone: set(2), unresponsive: set(3), word: set(4), removals: set(5), blamed: set(6),
		ballot: ballot(word(7)), accepted: ballot(word(8)), value: set(9),
	}, nil
}

// message fills in what every message carries, and the proposal's own.
func (c *agreement) message(k messageKind) agreementMessage {
	return agreementMessage{
		kind: k, from: c.self, set: c.set, left: c.left, gone: c.gone, unresponsive: c.unresponsive,
		word: c.want.word, removals: c.want.removals, blamed: c.want.blamed,
		ballot: c.turn.ballot, value: c.turn.value, inherited: c.turn.inherited,
	}
}

// notifyAll sends this rank's state to every rank of the agreed set that may still listen.
func (c *agreement) notifyAll() { c.notify(c.set) }

func (c *agreement) notify(ranks rankset.Set) {
	m := c.message(kindState)
	for r := range ranks.Minus(c.gone).Without(c.self).All() {
		m.to = r
		c.outbox = append(c.outbox, m)
	}
}

// toAll sends a proposal's message to every rank, this rank included.
func (c *agreement) toAll(now time.Time, m agreementMessage) {
	m.blamed = c.turn.blamed
	for r := range c.set.Minus(c.gone).Without(c.self).All() {
		m.to = r
		c.outbox = append(c.outbox, m)
	}
	m.to = c.self
	c.serve(now, &m)
}

// receive takes a message from another rank.
func (c *agreement) receive(now time.Time, m *agreementMessage) {
	c.observe(now, m.from)
	before := c.set
	switch {
	case c.merge(m):
		c.notify(before)
	case m.set != c.set:
		c.answerWithState(m)
	}
	m.value = m.value.And(c.set) // whatever it says, no rank comes in
	c.note(now, m)
	c.serve(now, m)
	c.propose(now)
}

// observe notes a sign of life.
func (c *agreement) observe(now time.Time, rank int) {
	c.lastHeard[rank] = now
	c.unresponsive = c.unresponsive.Without(rank)
}

// merge takes over what has been agreed on, or which ranks have left; news is worth
// telling others at once.
func (c *agreement) merge(m *agreementMessage) (news bool) {
	if next := c.set.And(m.set); next != c.set {
		c.adopt(next)
		news = true
	}
	if !m.left.Minus(c.left).Empty() {
		c.left = c.left.Or(m.left)
		news = true
	}
	if m.left.Has(m.from) {
		c.gone = c.gone.With(m.from) // it decides nothing any more, and said so itself
	}
	return news
}

// note keeps what a rank says of itself.
func (c *agreement) note(now time.Time, m *agreementMessage) {
	w := &c.rows[m.from]
	w.unresponsive, w.word, w.removals, w.at = m.unresponsive, m.word, m.removals, now
	if m.kind != kindPrepare && m.kind != kindAccept {
		w.blamed = m.blamed
	}
}

// serve is the part of a rank that others ask for its vote.
func (c *agreement) serve(now time.Time, m *agreementMessage) {
	own := m.from == c.self
	switch m.kind {
	case kindPrepare, kindAccept:
		if m.set != c.set || c.left.Has(c.self) {
			c.answerWithState(m)
			return
		}
		if answer, yes := c.vote(m); yes {
			answer.to = m.from
			if !own {
				c.outbox = append(c.outbox, answer)
				return
			}
			c.serve(now, &answer)
		}
	case kindPromise:
		c.promise(now, m)
	case kindAccepted:
		c.agree(now, m)
	}
}

// answerWithState tells a proposer that it is behind.
func (c *agreement) answerWithState(m *agreementMessage) {
	if m.from != c.self {
		s := c.message(kindState)
		s.to = m.from
		c.outbox = append(c.outbox, s)
	}
}

// vote answers a proposer, or not.
func (c *agreement) vote(m *agreementMessage) (answer agreementMessage, yes bool) {
	if m.ballot < c.promised {
		return agreementMessage{}, false
	}
	if c.contradicts(m) {
		return agreementMessage{}, false
	}
	if m.kind == kindPrepare {
		if m.ballot == c.promised {
			return agreementMessage{}, false
		}
		c.promised = m.ballot
		answer = c.message(kindPromise)
		answer.ballot, answer.accepted, answer.value = m.ballot, c.accepted, c.value
		return answer, true
	}
	c.promised, c.accepted, c.value = m.ballot, m.ballot, m.value
	answer = c.message(kindAccepted)
	answer.ballot = m.ballot
	return answer, true
}

// contradicts reports that this rank hears a rank that the proposer calls unresponsive or
// dead. It does not contradict what may have been agreed on before.
func (c *agreement) contradicts(m *agreementMessage) bool {
	if m.inherited {
		return false
	}
	return !m.set.Minus(m.value).Minus(m.blamed).Minus(c.gone.Or(c.unresponsive)).Empty()
}
