package server

import (
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
)

// complaint looks at a block that did not fit its tag where it was read. It does so in a goroutine of its own, so
// that other requests go on: a block may be long, and on a disk. A client's complaints have one turn after the other.
func (c *conn) complaint(j *job, n int) error {
	if err := c.payload(j, n); err != nil {
		return err
	}
	var err error
	if j.keys, err = message.Keys(j.keys, j.in, 1); err != nil {
		j.status = message.Malformed
		c.answer(reply{job: j})
		return nil
	}
	t, until := j.space.tagger.Clone(), j.began.Add(c.server.cfg.Total)
	c.current = nil
	c.others.Add(1)
	safego.Go("store: complaint", func() {
		defer c.others.Done()
		if err := safego.Call("store: complaint", func() { j.status = c.recheck(j, t, until) }); err != nil {
			j.status = message.Failed
			c.report(err)
		}
		c.waiting.Add(1)
		c.replies <- reply{job: j}
	}, c.report)
	return nil
}

// recheck says whether the block that the reader was told of is gone: there is none, or another one, or it does not fit
// its tag here either and is dropped. A block that fits was changed on its way. It stays, and so does one that could
// not be looked at.
func (c *conn) recheck(j *job, t *tag.Tagger, until time.Time) message.Status {
	c.rechecking.Lock()
	defer c.rechecking.Unlock()
	c.lease(j, 0, 1)
	l, gone := &j.leases[0], j.yes[:1]
	gone[0] = !l.Held() || l.Tag() != j.said.Tag
	if !gone[0] {
		fits, status := c.fits(j, t, l, until)
		switch {
		case status != message.OK:
			return status
		case fits:
			c.server.counters.Changed.Add(1)
		default:
			c.server.counters.BadReads.Add(1)
			l.Bad()
			gone[0] = true
		}
	}
	j.out = message.AppendFound(j.out, 0, gone)
	return message.OK
}

// fits compares a block with its tag. Any other status than OK says why it could not.
func (c *conn) fits(j *job, t *tag.Tagger, l *Lease, until time.Time) (bool, message.Status) {
	size, room := int(l.Bytes()), []byte(nil)
	t.Begin(j.keys[0], size)
	for off := 0; off < size; off += pieceBytes {
		if status := c.mayGoOn(until); status != message.OK {
			return false, status
		}
		room = room[:0]
		p := c.bytes(&room, l, int64(off), min(pieceBytes, size-off))
		if p == nil {
			return false, message.Failed
		}
		t.Write(p)
	}
	return t.Tag() == l.Tag(), message.OK
}

// mayGoOn says why what is done for a client on the side ends before its end.
func (c *conn) mayGoOn(until time.Time) message.Status {
	select {
	case <-c.server.cut: // Close waits
		return message.Closing
	default:
	}
	switch {
	case c.lost.Load():
		return message.Closing
	case !time.Now().Before(until):
		return message.Late
	}
	return message.OK
}
