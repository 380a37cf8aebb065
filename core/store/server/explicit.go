package server

import (
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// allocate begins a block that comes in several messages.
func (c *conn) allocate(j *job) error {
	if status := c.handles.reserve(j.said.Bytes); status != message.OK {
		return c.fail(j, status)
	}
	w, err := c.begin(j)
	if w == nil || err != nil {
		c.handles.unreserve(j.said.Bytes)
	}
	if err != nil {
		return err
	}
	if w == nil {
		return c.fail(j, j.status)
	}
	if err := c.in.End(); err != nil {
		c.giveUp(j, w)
		return err
	}
	h := c.handles.add(c.until(uint64(j.said.DeadlineUs)))
	if h == nil {
		c.giveUp(j, w)
		j.status = message.Quota
		c.answer(reply{job: j})
		return nil
	}
	pause := c.server.cfg.Idle
	h.writing, h.job, h.space, h.pause, h.next = w, j.said, j.space, pause, time.Now().Add(pause)
	h.key = append(h.key, j.in[:j.said.KeyBytes]...)
	j.out = message.AppendHandle(j.out, c.handles.ready(h))
	c.answer(reply{job: j})
	return nil
}

// giveUp ends a block that has no handle.
func (c *conn) giveUp(j *job, w Writing) {
	w.Release()
	c.handles.unreserve(j.said.Bytes)
}

// writeInto takes the next bytes of such a block.
func (c *conn) writeInto(j *job) error {
	h := c.handles.use(j.said.Handle)
	if h == nil || h.writing == nil {
		c.handles.unuse(h)
		return c.fail(j, message.Unknown)
	}
	defer c.handles.unuse(h)
	end := j.said.Offset + uint64(j.said.Bytes)
	if j.said.Offset != uint64(h.given) || end > uint64(h.job.Bytes) {
		return c.fail(j, message.Malformed)
	}
	if err := c.in.Read(h.writing.Buffer()[j.said.Offset:end]); err != nil {
		return err
	}
	if err := c.in.End(); err != nil {
		return err
	}
	h.given = int64(end)
	c.handles.goesOn(h)
	c.server.counters.BytesIn.Add(uint64(j.said.Bytes))
	c.answer(reply{job: j})
	return nil
}

// finish commits or aborts such a block.
func (c *conn) finish(j *job) message.Status {
	h := c.handles.use(j.said.Handle)
	if h == nil || h.writing == nil {
		c.handles.unuse(h)
		return message.Unknown
	}
	defer c.handles.unuse(h)
	if j.code == message.Abort {
		c.handles.release(j.said.Handle)
		return message.OK
	}
	if h.given != int64(h.job.Bytes) {
		return message.Malformed // the rest may come yet
	}
	defer c.handles.release(j.said.Handle)
	t := h.space.tagger
	if t.Of(h.key, h.writing.Buffer()) != h.job.Tag {
		c.server.counters.BadPuts.Add(1)
		return message.BadTag
	}
	return c.commit(j, h.writing)
}

// readFrom finds the bytes of a leased block, which are written later.
func (c *conn) readFrom(j *job) message.Status {
	h := c.handles.use(j.said.Handle)
	if h == nil || !h.lease.Held() {
		c.handles.unuse(h)
		return message.Unknown
	}
	j.held = h // until release
	if j.said.Offset+uint64(j.said.Bytes) > uint64(h.lease.Bytes()) || j.said.Offset > uint64(h.lease.Bytes()) {
		return message.Malformed
	}
	return message.OK
}

// releaseAll ends handles, and says which of them had not ended before.
func (c *conn) releaseAll(j *job) message.Status {
	there, n := j.yes[:j.said.NumKeys], 0
	for i := range there {
		if there[i] = c.handles.release(message.Handle(j.in, i)); there[i] {
			n++
		}
	}
	j.out = message.AppendFound(j.out, n, there)
	return message.OK
}

// piece writes the reply to a read.
func (c *conn) piece(j *job) error {
	c.data, j.pieces = c.data[:0], j.pieces[:0]
	n := int(j.said.Bytes)
	p := c.bytes(&c.data, &j.held.lease, int64(j.said.Offset), n)
	if p == nil && n > 0 {
		c.head.Status, c.head.Refused = uint16(message.Failed), true
		return c.out.Append(&c.head, nil)
	}
	j.pieces = append(j.pieces, p)
	c.server.counters.BytesOut.Add(uint64(n))
	return c.out.Append(&c.head, j.pieces)
}
