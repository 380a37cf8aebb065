package mixed

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"time"
)

// letter is a message between councils. Each one carries all that its sender
// would have others know.
type letter struct {
	kind      letterKind
	to, from  int // not in the bytes
	inherited bool
	set       uint64
	left      uint64
	gone      uint64
	silent    uint64
	word      uint64 // of the want
	victims   uint64
	judged    uint64 // of a want; of a proposal: who is out for another reason than silence
	ballot    ballot
	accepted  ballot
	value     uint64
}

type letterKind uint8

const (
	kindState letterKind = iota + 1
	kindPrepare
	kindPromise
	kindAccept
	kindAccepted
	numLetterKinds
)

// letterBytes is a letter's length: kind, inherited, then the words.
const letterBytes = 2 + 10*8

func (m *letter) words() [10]*uint64 {
	return [...]*uint64{
		&m.set, &m.left, &m.gone, &m.silent, &m.word, &m.victims, &m.judged,
		(*uint64)(&m.ballot), (*uint64)(&m.accepted), &m.value,
	}
}

func (m *letter) append(b []byte) []byte {
	var inherited byte
	if m.inherited {
		inherited = 1
	}
	b = append(b, byte(m.kind), inherited)
	for _, w := range m.words() {
		b = binary.LittleEndian.AppendUint64(b, *w)
	}
	return b
}

var errLetter = errors.New("malformed letter")

func parseLetter(b []byte) (m letter, err error) {
	if len(b) != letterBytes || b[0] == 0 || b[0] >= byte(numLetterKinds) || b[1] > 1 {
		return letter{}, errLetter
	}
	m.kind, m.inherited = letterKind(b[0]), b[1] == 1
	for i, w := range m.words() {
		*w = binary.LittleEndian.Uint64(b[2+8*i:])
	}
	return m, nil
}

// letter fills in what every message carries, and the proposal's own.
func (c *council) letter(k letterKind) letter {
	return letter{
		kind: k, from: c.self, set: c.set, left: c.left, gone: c.gone, silent: c.silent,
		word: c.want.word, victims: c.want.victims, judged: c.want.judged,
		ballot: c.turn.ballot, value: c.turn.value, inherited: c.turn.inherited,
	}
}

// tellAll sends this rank's state to everybody in the agreed set who may still
// listen.
func (c *council) tellAll() { c.tell(c.set) }

func (c *council) tell(ranks uint64) {
	m := c.letter(kindState)
	for rest := ranks &^ c.gone &^ (1 << c.self); rest != 0; rest &= rest - 1 {
		m.to = bits.TrailingZeros64(rest)
		c.outbox = append(c.outbox, m)
	}
}

// toAll sends a proposal's message to everybody, this rank included.
func (c *council) toAll(now time.Time, m letter) {
	m.judged = c.turn.judged
	for rest := c.set &^ c.gone &^ (1 << c.self); rest != 0; rest &= rest - 1 {
		m.to = bits.TrailingZeros64(rest)
		c.outbox = append(c.outbox, m)
	}
	m.to = c.self
	c.serve(now, &m)
}

// receive takes a message from another rank.
func (c *council) receive(now time.Time, m *letter) {
	c.hear(now, m.from)
	before := c.set
	switch {
	case c.merge(m):
		c.tell(before)
	case m.set != c.set:
		c.answerLate(m)
	}
	m.value &= c.set // whatever it says, nobody comes in
	c.note(now, m)
	c.serve(now, m)
	c.propose(now)
}

// hear notes a sign of life.
func (c *council) hear(now time.Time, rank int) {
	c.heard[rank] = now
	c.silent &^= 1 << rank
}

// merge takes over what has been agreed on, or who has left; news is worth
// telling others at once.
func (c *council) merge(m *letter) (news bool) {
	if next := c.set & m.set; next != c.set {
		c.adopt(next)
		news = true
	}
	if m.left&^c.left != 0 {
		c.left |= m.left
		news = true
	}
	if m.left>>m.from&1 == 1 {
		c.gone |= 1 << m.from // it decides nothing any more, and said so itself
	}
	return news
}

// note keeps what a rank says of itself.
func (c *council) note(now time.Time, m *letter) {
	w := &c.rows[m.from]
	w.silent, w.word, w.victims, w.at = m.silent, m.word, m.victims, now
	if m.kind != kindPrepare && m.kind != kindAccept {
		w.judged = m.judged
	}
}

// serve is the part of a rank that others ask for its vote.
func (c *council) serve(now time.Time, m *letter) {
	own := m.from == c.self
	switch m.kind {
	case kindPrepare, kindAccept:
		if m.set != c.set || c.left>>c.self&1 == 1 {
			c.answerLate(m)
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

// answerLate tells a proposer that it is behind.
func (c *council) answerLate(m *letter) {
	if m.from != c.self {
		s := c.letter(kindState)
		s.to = m.from
		c.outbox = append(c.outbox, s)
	}
}

// vote answers a proposer, or not.
func (c *council) vote(m *letter) (answer letter, yes bool) {
	if m.ballot < c.promised && c.rules.mutant != forgetPromise {
		return letter{}, false
	}
	if c.contradicts(m) {
		return letter{}, false
	}
	if m.kind == kindPrepare {
		if m.ballot == c.promised {
			return letter{}, false
		}
		c.promised = m.ballot
		answer = c.letter(kindPromise)
		answer.ballot, answer.accepted, answer.value = m.ballot, c.accepted, c.value
		return answer, true
	}
	c.promised, c.accepted, c.value = m.ballot, m.ballot, m.value
	answer = c.letter(kindAccepted)
	answer.ballot = m.ballot
	return answer, true
}

// contradicts reports that this rank hears somebody whom the proposer calls
// silent or dead. What may have been agreed on before is not contradicted.
func (c *council) contradicts(m *letter) bool {
	if m.inherited || c.rules.mutant == believeSuspicion {
		return false
	}
	return (m.set&^m.value)&^m.judged&^(c.gone|c.silent) != 0
}
