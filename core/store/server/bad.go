package server

import "github.com/moewire/moewire/core/store/message"

// complaint looks at blocks that did not fit their tags where they were read, and drops those
// that do not fit them here. A block that does was changed on its way: it stays, and the client
// is told so.
func (c *conn) complaint(j *job) {
	engine, yes := c.server.cfg.Store, j.yes[:len(j.keys)]
	c.lease(j, 0, len(j.keys))
	for i, key := range j.keys {
		held := j.leases[i].Held()
		yes[i] = !held || !c.fits(j, key, &j.leases[i])
		j.leases[i].Release()
		j.leases[i] = Lease{}
		switch {
		case !yes[i]:
			c.server.counters.Changed.Add(1)
		case held:
			c.server.counters.BadReads.Add(1)
			engine.Bad(j.space.ns, key)
		}
	}
	j.out = message.AppendFound(j.out, 0, yes)
}

// fits compares a block with its tag.
func (c *conn) fits(j *job, key []byte, l *Lease) bool {
	t, size, room := j.space.tagger, int(l.Bytes()), []byte(nil)
	t.Begin(key, size)
	for off := 0; off < size; off += pieceBytes {
		room = room[:0]
		p := c.bytes(&room, l, int64(off), min(pieceBytes, size-off))
		if p == nil {
			return false
		}
		t.Write(p)
	}
	return t.Tag() == l.Tag()
}
