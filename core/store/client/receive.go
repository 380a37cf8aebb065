package client

import (
	"bytes"
	"fmt"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// message reads one message of a reply.
func (l *link) message() error {
	head, err := l.in.Next()
	if err != nil {
		return err
	}
	t := l.reached(head.Request)
	if t == nil || !head.Reply || head.Code != t.code {
		return fmt.Errorf("%w: a reply to nothing", message.ErrMalformed)
	}
	last, err := l.reply(&head, t)
	if err != nil {
		return err
	}
	l.replied(head.Request, t, last)
	return nil
}

// reached finds the part that a reply is for, and keeps its memory.
func (l *link) reached(id uint64) *part {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.running[id]
	if t != nil {
		t.reading = true
	}
	return t
}

// replied lets a part go on, or ends it with the last message of its reply.
func (l *link) replied(id uint64, t *part, last bool) {
	l.mu.Lock()
	t.reading = false
	if last {
		delete(l.running, id)
		if len(l.queue) > 0 { // else the sender has nothing to do
			l.wake.Signal()
		}
	}
	t.answered = last
	over := last && !t.writing // else its writer ends it
	if over {
		l.giveRoom(t)
	}
	l.mu.Unlock()
	if over {
		t.complete()
	}
}

// reply reads one message of a reply.
func (l *link) reply(head *wire.Head, t *part) (last bool, err error) {
	status := message.Status(head.Status)
	counts := &l.peer.client.counts
	if t.ask != nil {
		return true, l.answer(head, t)
	}
	if head.Refused {
		return true, l.declined(head, t)
	}
	switch t.code {
	case message.Get:
		if t.placed {
			return true, l.fetch(head, t)
		}
		return l.part(head, t)
	case message.Put:
		if err := l.in.End(); err != nil {
			return true, err
		}
		counts.count(status)
		l.accept(t, 0, t.bytes)
		return true, nil
	case message.Bad:
		return true, l.complaintReply(head)
	case message.Exists, message.Delete, message.Pin:
		return true, l.found(head, t)
	}
	return true, l.in.End()
}

// complaintReply reads what the server says of a block that did not fit its tag: one that is not gone
// was changed on this connection, or in this process.
func (l *link) complaintReply(head *wire.Head) error {
	gone, err := l.bits(head, 1)
	if err == nil && !gone[0] {
		l.peer.client.counts.Changed.Add(1)
		err = errChanged
	}
	return err
}

// accept says that a key is done well.
func (l *link) accept(t *part, i, n int) {
	if t.call != nil {
		t.call.OK[t.at[i]], t.call.Lengths[t.at[i]] = true, n
	}
}

// bits reads a bit for each of n keys.
func (l *link) bits(head *wire.Head, n int) ([]bool, error) {
	if head.PayloadBytes != int64(message.FoundBytes(n)) {
		return nil, message.ErrMalformed
	}
	b := l.room(message.FoundBytes(n))
	if err := l.in.Read(b); err != nil {
		return nil, err
	}
	if err := l.in.End(); err != nil {
		return nil, err
	}
	found := l.marks(n)
	_, err := message.Found(b, found)
	return found, err
}

func (l *link) found(head *wire.Head, t *part) error {
	found, err := l.bits(head, len(t.keys))
	if err != nil {
		return err
	}
	for i, yes := range found {
		if yes {
			l.accept(t, i, 0)
		}
	}
	return nil
}

func (l *link) room(n int) []byte {
	if cap(l.entries) < n {
		l.entries = make([]byte, n)
	}
	return l.entries[:n]
}

func (l *link) marks(n int) []bool {
	if cap(l.hits) < n {
		l.hits = make([]bool, message.MaxKeys)
	}
	clear(l.hits[:n])
	return l.hits[:n]
}

// part reads a part of a get's reply: its table, and the blocks to where they belong. A block
// is one only when its tag fits and the table that says the tag was genuine, which End tells.
func (l *link) part(head *wire.Head, t *part) (last bool, err error) {
	var p message.Part
	if err := p.Decode(head.Extra, len(t.keys)); err != nil {
		return false, err
	}
	n := int(p.NumKeys)
	tooLong := head.PayloadBytes > int64(n*message.EntryBytes+message.PartBytes)
	if int(p.First) != t.next || int(p.Offset) != t.off || tooLong {
		return false, message.ErrMalformed
	}
	table := l.room(n * message.EntryBytes)
	if err := l.in.Read(table); err != nil {
		return false, err
	}
	outcomes := l.outcomes[:n]
	for i := range n {
		var e message.Entry
		if err := e.Decode(table[i*message.EntryBytes : (i+1)*message.EntryBytes]); err != nil {
			return false, err
		}
		if outcomes[i], err = l.block(t, &p, int(p.First)+i, &e); err != nil {
			return false, err
		}
	}
	if l.in.Left() != 0 {
		return false, message.ErrMalformed
	}
	if err := l.in.End(); err != nil {
		return false, err
	}
	l.took(t, &p, table, outcomes)
	return p.Last, nil
}

// outcome is what became of the bytes of a key, if the message that they are of is genuine.
type outcome uint8

const (
	outcomeNone outcome = iota // a miss, no room, or more is to come
	outcomeGood                // a whole block and its tag
	outcomeBad                 // a whole block and another tag
)

// block reads the bytes of one key.
func (l *link) block(t *part, p *message.Part, i int, e *message.Entry) (outcome, error) {
	n := p.Data(e)
	if e.Status != message.OK {
		return outcomeNone, nil
	}
	if n == 0 && e.Bytes > 0 {
		return outcomeNone, message.ErrMalformed
	}
	dst := t.place(i, e, p.Offset == 0)
	if dst == nil && e.Bytes > 0 {
		return outcomeNone, l.skip(n)
	}
	if p.Offset == 0 {
		l.checker.Begin(t.keys[i], int(e.Bytes))
	}
	if err := l.scatter(dst, int(p.Offset), n); err != nil {
		return outcomeNone, err
	}
	switch {
	case p.Offset+uint32(n) < e.Bytes:
		return outcomeNone, nil
	case l.checker.Tag() == e.Tag:
		return outcomeGood, nil
	}
	return outcomeBad, nil
}

// complain tells the server of a block that the tag it has said does not fit.
func (l *link) complain(key []byte, said tag.Tag) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.queue = append(l.queue, &part{
			code: message.Bad, keys: [][]byte{bytes.Clone(key)}, tag: said, timeout: l.peer.client.cfg.Timeout, begun: stream.Now(),
		})
		l.wake.Signal()
		l.peer.client.wakeWatch()
	}
}

// place is where a block goes; nil: there is no room, or it was given up.
func (t *part) place(i int, e *message.Entry, first bool) [][]byte {
	switch {
	case t.call == nil:
		return nil
	case t.call.Data != nil:
		return t.give(i, int(e.Bytes), first)
	case size(t.bufs[i]) < int(e.Bytes):
		return nil
	}
	return t.bufs[i]
}

// give makes memory for a block where the caller has given none.
func (t *part) give(i, n int, first bool) [][]byte {
	if t.gave == nil {
		t.gave = make([][]byte, len(t.keys))
	}
	if first {
		t.gave[i] = make([]byte, n)
	}
	if len(t.gave[i]) != n {
		return nil
	}
	return t.gave[i : i+1]
}

// scatter reads n bytes into pieces, from off on.
func (l *link) scatter(dst [][]byte, off, n int) error {
	for _, p := range dst {
		if off >= len(p) {
			off -= len(p)
			continue
		}
		p = p[off:]
		p, off = p[:min(len(p), n)], 0
		n -= len(p)
		for len(p) > 0 {
			m := min(len(p), 256<<10)
			if err := l.in.ReadBlock(p[:m]); err != nil {
				return err
			}
			l.checker.Write(p[:m])
			p = p[m:]
		}
		if n == 0 {
			break
		}
	}
	return nil
}

func (l *link) skip(n int) error {
	var scratch [tag.ChunkBytes]byte
	for n > 0 {
		m := min(n, len(scratch))
		if err := l.in.ReadBlock(scratch[:m]); err != nil {
			return err
		}
		n -= m
	}
	return nil
}

// took notes what a genuine message has brought.
func (l *link) took(t *part, p *message.Part, table []byte, outcomes []outcome) {
	for i := range outcomes {
		var e message.Entry
		_ = e.Decode(table[i*message.EntryBytes : (i+1)*message.EntryBytes])
		at := int(p.First) + i
		end := int(p.Offset) + p.Data(&e)
		if e.Status == message.OK && end < int(e.Bytes) {
			t.next, t.off = at, end
			return
		}
		t.next, t.off = at+1, 0
		l.note(t, at, &e, outcomes[i])
	}
}

func (l *link) note(t *part, at int, e *message.Entry, f outcome) {
	counts := &l.peer.client.counts
	switch {
	case t.call == nil:
		return
	case f == outcomeBad: // somewhere between the writer and here
		counts.BadTags.Add(1)
		l.complain(t.keys[at], e.Tag)
	case f == outcomeGood:
		counts.Hits.Add(1)
		l.accept(t, at, int(e.Bytes))
		if t.call.Data != nil {
			t.call.Data[t.at[at]] = t.gave[at]
		}
	case e.Status == message.OK && t.call.Data == nil && size(t.bufs[at]) < int(e.Bytes):
		counts.TooSmall.Add(1)
		t.call.Lengths[t.at[at]] = int(e.Bytes)
	default:
		counts.Misses.Add(1)
	}
}
