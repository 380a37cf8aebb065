package server

import (
	"fmt"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
)

// pieceBytes is how much of a block is read before it is tagged: it is in the cache then.
const pieceBytes = 256 << 10

// put brings a block straight to where it stays, and commits it if its tag is right.
func (c *conn) put(j *job) error {
	if j.bounced() && (c.bounce == nil || !c.bounce.Has(int64(j.said.Offset), int(j.said.Bytes))) {
		return c.fail(j, message.Malformed)
	}
	w, err := c.begin(j)
	if err != nil {
		return err
	}
	if w == nil {
		return c.fail(j, j.status)
	}
	defer w.Release()
	if err := c.fill(j, w); err != nil {
		return err
	}
	if j.status == message.OK {
		j.status = c.commit(j, w)
	}
	c.answer(reply{job: j})
	return nil
}

// begin reads the key and asks for room. Without a Writing the status says why.
func (c *conn) begin(j *job) (Writing, error) {
	said := &j.said
	names := j.room(int(said.KeyBytes) + int(said.Parent))
	if err := c.in.Read(names); err != nil {
		return nil, err
	}
	w, err := c.server.cfg.Store.Allocate(store.Allocation{
		NS: j.space.ns, Key: names[:said.KeyBytes], Parent: names[said.KeyBytes:], Bytes: int64(said.Bytes), Tag: said.Tag,
	})
	if err != nil {
		j.status = j.refusal(err)
		return nil, nil
	}
	return w, nil
}

// bounced reports whether the block of a put lies in the client's bounce buffer.
func (j *job) bounced() bool { return j.said.Flags&message.FlagPlace != 0 }

// fill brings the block. An error ends the connection; a wrong tag, or a block that cannot be read, is a status, and the
// writing is over then.
func (c *conn) fill(j *job, w Writing) error {
	t := j.space.tagger
	t.Begin(j.in[:j.said.KeyBytes], int(j.said.Bytes))
	if !j.bounced() {
		if err := c.receive(t, w.Buffer()); err != nil {
			return err
		}
	}
	if err := c.in.End(); err != nil {
		return err
	}
	if j.bounced() {
		if err := c.copyFrom(j, w.Buffer()); err != nil {
			w.Abort()
			j.say(err.Error())
			j.status = message.NotCopied
			return nil
		}
	}
	c.server.counters.BytesIn.Add(uint64(j.said.Bytes))
	if t.Tag() != j.said.Tag {
		w.Abort()
		c.server.counters.BadPuts.Add(1)
		j.status = message.BadTag
	}
	return nil
}

// receive reads a block that the client sends.
func (c *conn) receive(t *tag.Tagger, buf []byte) error {
	for len(buf) > 0 {
		n := min(len(buf), pieceBytes)
		if err := c.in.ReadBlock(buf[:n]); err != nil {
			return err
		}
		t.Write(buf[:n])
		buf = buf[n:]
	}
	return nil
}

// copyFrom copies a block from the client's bounce buffer. The tag is of the copy, whatever the client does with what it
// has meanwhile.
func (c *conn) copyFrom(j *job, buf []byte) error {
	there, err := c.bounce.Bytes(int64(j.said.Offset), len(buf))
	if err != nil {
		return fmt.Errorf("the client's bounce buffer: %w", err)
	}
	j.space.tagger.Copy(buf, there)
	return nil
}

func (c *conn) commit(j *job, w Writing) message.Status {
	if err := w.Commit(); err != nil {
		return j.refusal(err)
	}
	return message.OK
}
