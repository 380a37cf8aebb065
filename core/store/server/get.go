package server

import (
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// acquire leases the blocks of a lookup, or of a get that says where they lie. Those of another get are leased as they
// are written.
func (c *conn) acquire(j *job) message.Status {
	placed := j.said.Flags&message.FlagPlace != 0
	if placed && !c.shared.Load() {
		return message.Malformed
	}
	if j.code == message.Get && !placed {
		j.sends = true
		return message.OK
	}
	hits := c.lease(j, 0, len(j.keys))
	c.server.counters.Hits.Add(uint64(hits))
	c.server.counters.Misses.Add(uint64(len(j.keys) - hits))
	switch {
	case j.code == message.Lookup:
		c.keepAll(j, placed)
	case placed:
		c.places(j)
	}
	return message.OK
}

// keepAll answers a lookup with handles.
func (c *conn) keepAll(j *job, placed bool) {
	until := c.until(uint64(j.said.DeadlineUs))
	for i := range j.keys {
		at := place(&j.leases[i])
		e := c.keep(j, i, until)
		switch {
		case !placed:
			j.out = e.AppendLookup(j.out)
		case e.Status == message.OK:
			j.out = e.AppendPlaced(j.out, at)
		default:
			j.out = e.AppendPlaced(j.out, 0)
		}
	}
}

// keep makes a handle of a lease. Without room for one it is a miss.
func (c *conn) keep(j *job, i int, until time.Time) message.Entry {
	e := entryOf(&j.leases[i])
	if e.Status != message.OK {
		return e
	}
	h := c.handles.add(until)
	if h == nil {
		j.leases[i].Release()
		j.leases[i] = Lease{}
		return message.Entry{Status: message.Miss}
	}
	h.lease, j.leases[i] = j.leases[i], Lease{}
	e.Handle = c.handles.ready(h)
	return e
}

func entryOf(l *Lease) message.Entry {
	if !l.Held() {
		return message.Entry{Status: message.Miss}
	}
	return message.Entry{Status: message.OK, Bytes: uint32(l.Bytes()), Tag: l.Tag()}
}

// parts writes the reply to a get. It leases the blocks of one part at a time, so that a client that does not
// read keeps no others from being evicted.
func (c *conn) parts(j *job) error {
	for at := 0; at < len(j.keys); {
		next, err := c.part(j, at)
		j.letGo()
		if err != nil {
			return err
		}
		at = next
	}
	if j.turns > 1 { // the beginning of a chain stays longest
		c.server.cfg.Store.Touch(j.space.ns, j.keys)
	}
	return nil
}

// part writes as many blocks as go into one part, or one block in parts of its own.
func (c *conn) part(j *job, at int) (next int, err error) {
	j.start()
	c.data = c.data[:0]
	bytes, leased, seen := 0, at, 0
	for next = at; next < len(j.keys); next++ {
		if next == leased {
			if message.PartBytes-bytes < seen {
				break // as long as those before: it goes into the next part
			}
			leased = min(next+ahead(message.PartBytes-bytes, seen, next-at), len(j.keys))
			c.lease(j, next, leased)
		}
		e := entryOf(&j.leases[next])
		if next == at && e.Bytes > message.PartBytes {
			c.server.counters.Hits.Add(1)
			return at + 1, c.large(j, at)
		}
		if bytes += int(e.Bytes); bytes > message.PartBytes {
			break
		}
		if seen = max(seen, int(e.Bytes)); c.add(j, &j.leases[next], e, 0, int(e.Bytes)) {
			c.server.counters.Hits.Add(1)
		} else {
			c.server.counters.Misses.Add(1)
		}
	}
	p := message.Part{First: uint16(at), NumKeys: uint16(next - at), Last: next == len(j.keys)}
	return next, c.flushPart(j, &p)
}

// ahead is how many blocks are leased at a time: what a part has room for, if they are as long as those before. Of the
// first ones nothing is known.
func ahead(room, seen, num int) int {
	if seen == 0 {
		return min(1+num, 32)
	}
	return max(1, min(room/seen, 32))
}

// large writes a block that is longer than a part.
func (c *conn) large(j *job, at int) error {
	l := &j.leases[at]
	e, until := entryOf(l), time.Now().Add(c.server.cfg.Total)
	for off := uint32(0); off < e.Bytes; off += message.PartBytes {
		j.start()
		c.data = c.data[:0]
		n := min(e.Bytes-off, message.PartBytes)
		if time.Now().After(until) { // the rest is a miss
			c.server.counters.Expired.Add(1)
			e = message.Entry{Status: message.Miss}
		}
		ok := c.add(j, l, e, int64(off), int(n))
		last := at+1 == len(j.keys) && (off+n == e.Bytes || !ok)
		p := message.Part{First: uint16(at), NumKeys: 1, Last: last, Offset: off}
		if err := c.flushPart(j, &p); err != nil || !ok {
			return err
		}
	}
	return nil
}

// start begins a part: the table goes first.
func (j *job) start() {
	j.out, j.pieces = j.out[:0], append(j.pieces[:0], nil)
}

// add adds a key to a part, with bytes of its block from where they lie or, if that is no
// memory, by way of c.data. A block that cannot be read is a miss.
func (c *conn) add(j *job, l *Lease, e message.Entry, off int64, n int) bool {
	if e.Status == message.OK {
		if p := c.bytes(&c.data, l, off, n); p != nil || n == 0 {
			j.pieces = append(j.pieces, p)
		} else {
			e = message.Entry{Status: message.Miss}
		}
	}
	j.out = e.Append(j.out)
	return e.Status == message.OK
}

// apart is how many bytes of a part stand behind its table.
func (j *job) apart() (n uint32) {
	for _, p := range j.pieces[1:] {
		n += uint32(len(p))
	}
	return n
}

// bytes are n bytes of a block, in room if they lie in no memory; nil if they cannot be read.
func (c *conn) bytes(room *[]byte, l *Lease, off int64, n int) []byte {
	if all := l.Data(); all != nil {
		return all[off : off+int64(n)]
	}
	if cap(*room) == 0 {
		*room = make([]byte, 0, message.PartBytes)
	}
	p := (*room)[len(*room) : len(*room)+n]
	if err := l.Read(off, p); err != nil {
		c.server.counters.ReadFailed.Add(1)
		return nil
	}
	*room = (*room)[:len(*room)+n]
	return p
}

func (c *conn) flushPart(j *job, p *message.Part) error {
	j.pieces[0] = j.out
	c.head.Extra = p.Encode(j.extra[:])
	c.head.ApartBytes = j.apart() // the table has tags
	err := c.out.Append(&c.head, j.pieces)
	c.server.counters.BytesOut.Add(uint64(c.head.PayloadBytes) - uint64(len(j.out)))
	return err
}
