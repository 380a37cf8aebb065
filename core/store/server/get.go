package server

import (
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// acquire leases the blocks of a get, which are written later, or of a lookup.
func (c *conn) acquire(j *job) message.Status {
	placed := j.said.Flags&message.FlagPlace != 0
	if placed && !c.shared {
		return message.Malformed
	}
	hits := c.server.cfg.Store.Acquire(j.space.ns, j.keys, j.leases[:len(j.keys)])
	j.hits = true
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
	j.hits = false // they are the handles' now
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

// parts writes the reply to a get.
func (c *conn) parts(j *job) error {
	for at := 0; at < len(j.keys); {
		next, err := c.part(j, at)
		if err != nil {
			return err
		}
		at = next
	}
	return nil
}

// part writes as many blocks as go into one part, or one block in parts of its own.
func (c *conn) part(j *job, at int) (next int, err error) {
	if entryOf(&j.leases[at]).Bytes > message.PartBytes {
		return at + 1, c.large(j, at)
	}
	j.start()
	bytes := 0
	for next = at; next < len(j.keys); next++ {
		e := entryOf(&j.leases[next])
		if bytes += int(e.Bytes); bytes > message.PartBytes {
			break
		}
		c.add(j, &j.leases[next], e, 0, int(e.Bytes))
	}
	p := message.Part{First: uint16(at), NumKeys: uint16(next - at), Last: next == len(j.keys)}
	return next, c.flushPart(j, &p)
}

// large writes a block that is longer than a part.
func (c *conn) large(j *job, at int) error {
	l := &j.leases[at]
	e := entryOf(l)
	for off := uint32(0); off < e.Bytes; off += message.PartBytes {
		j.start()
		n := min(e.Bytes-off, message.PartBytes)
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
	j.out, j.data, j.pieces = j.out[:0], j.data[:0], append(j.pieces[:0], nil)
}

// add adds a key to a part, with bytes of its block from where they lie or, if that is no
// memory, by way of j.data. A block that cannot be read is a miss.
func (c *conn) add(j *job, l *Lease, e message.Entry, off int64, n int) bool {
	if e.Status == message.OK {
		if p := c.bytes(j, l, off, n); p != nil || n == 0 {
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

// bytes are n bytes of a block; nil if they cannot be read.
func (c *conn) bytes(j *job, l *Lease, off int64, n int) []byte {
	if all := l.Data(); all != nil {
		return all[off : off+int64(n)]
	}
	if cap(j.data) == 0 {
		j.data = make([]byte, 0, message.PartBytes)
	}
	p := j.data[len(j.data) : len(j.data)+n]
	if err := l.Read(off, p); err != nil {
		c.server.counters.ReadFailed.Add(1)
		return nil
	}
	j.data = j.data[:len(j.data)+n]
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
