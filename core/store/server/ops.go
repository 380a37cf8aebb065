package server

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// perform reads the payload of a request, does it and answers. With an error the connection
// is over and nothing was answered.
func (c *conn) perform(j *job, head *wire.Head) error {
	if err := j.said.Decode(j.code, head.Extra, head.PayloadBytes); err != nil {
		return c.fail(j, message.Malformed)
	}
	if status := c.permit(j, nil); status != message.OK {
		return c.fail(j, status)
	}
	switch j.code {
	case message.Open, message.Stats, message.Flush, message.Write, message.Commit, message.Abort, message.Read,
		message.Release, message.Share:
	default:
		if j.space = c.space(j.said.Namespace); j.space == nil {
			return c.fail(j, message.Unknown)
		}
	}
	if c.expired(j) {
		return c.fail(j, message.Late)
	}
	switch j.code {
	case message.Put:
		return c.put(j)
	case message.Allocate:
		return c.allocate(j)
	case message.Write:
		return c.writeInto(j)
	case message.Flush:
		return c.flush(j)
	case message.Bad:
		return c.complaint(j, int(head.PayloadBytes))
	}
	return c.table(j, int(head.PayloadBytes))
}

// expired reports whether a request's deadline was over before it was begun: since it was read from the connection
// this side has had others to do. What lets go of something is done all the same.
func (c *conn) expired(j *job) bool {
	switch j.code {
	case message.Put, message.Get, message.Delete, message.Exists, message.Touch, message.Pin, message.List, message.Stats,
		message.Write, message.Commit, message.Read:
		us := time.Duration(j.said.DeadlineUs)
		return us > 0 && time.Duration(stream.Now()-c.in.Progress()) > us*time.Microsecond
	}
	return false
}

// fail skips what is left of the payload, and refuses.
func (c *conn) fail(j *job, status message.Status) error {
	if err := c.in.End(); err != nil {
		return err
	}
	j.status = status
	c.answer(reply{job: j})
	return nil
}

func (c *conn) space(id uint32) *space {
	if id >= uint32(len(c.spaces)) {
		return nil
	}
	return &c.spaces[id]
}

// payload reads one without data.
func (c *conn) payload(j *job, n int) error {
	if err := c.in.Read(j.room(n)); err != nil {
		return err
	}
	return c.in.End()
}

// table does what has a payload without data.
func (c *conn) table(j *job, n int) error {
	if err := c.payload(j, n); err != nil {
		return err
	}
	j.status = c.do(j)
	c.answer(reply{job: j})
	return nil
}

func (c *conn) do(j *job) message.Status {
	switch j.code {
	case message.Open:
		return c.open(j)
	case message.Stats:
		return c.stats(j)
	case message.List:
		return c.list(j)
	case message.Read:
		return c.readFrom(j)
	case message.Share:
		return c.share(j)
	case message.Commit, message.Abort:
		return c.finish(j)
	case message.Release:
		return c.releaseAll(j)
	}
	var err error
	if j.keys, err = message.Keys(j.keys, j.in, int(j.said.NumKeys)); err != nil {
		return message.Malformed
	}
	return c.ask(j)
}

// ask does what is about keys.
func (c *conn) ask(j *job) message.Status {
	engine, ns, yes := c.server.cfg.Store, j.space.ns, j.yes[:len(j.keys)]
	switch j.code {
	case message.Get, message.Lookup:
		return c.acquire(j)
	case message.Exists:
		j.out = message.AppendFound(j.out, engine.Exists(ns, j.keys, yes), yes)
	case message.Delete:
		j.out = message.AppendFound(j.out, engine.Delete(ns, j.keys, yes), yes)
	case message.Pin:
		until := time.Now().Add(time.Duration(min(j.said.Handle, math.MaxInt64/1000)) * time.Microsecond)
		j.out = message.AppendFound(j.out, engine.Pin(ns, j.keys, until, yes), yes)
	case message.Touch:
		engine.Touch(ns, j.keys)
	}
	return message.OK
}

// open opens a namespace, or finds it again.
func (c *conn) open(j *job) message.Status {
	var name message.Namespace
	if err := name.Decode(j.in); err != nil {
		return message.Malformed
	}
	digest := name.Digest()
	if status := c.permit(j, &digest); status != message.OK {
		return status
	}
	id := c.opened(digest)
	if id < 0 {
		if len(c.spaces) == maxSpaces {
			j.say(fmt.Sprintf("%d namespaces are open over this connection; allowed: %d", maxSpaces, maxSpaces))
			return message.Quota
		}
		ns, err := c.server.cfg.Store.Namespace(digest, name.Model)
		if err != nil {
			return j.refusal(err)
		}
		c.spaces = append(c.spaces, space{ns: ns, digest: digest, tagger: tag.New(c.server.cfg.Store.TagKey(), digest)})
		id = len(c.spaces) - 1
	}
	s := c.server
	said := message.Opened{
		Namespace: uint32(id), NumKeys: message.MaxKeys, BatchBytes: message.MaxBatchBytes, Contexts: uint32(s.cfg.Contexts),
		BlockBytes: uint64(min(s.cfg.Store.MaxBlockBytes(message.MaxKeyBytes), message.MaxBlockBytes)),
		Storage:    s.cfg.Storage, Boot: s.boot, TagKey: s.cfg.Store.TagKey().Mask(c.secret),
	}
	j.out = said.Encode(j.out[:message.OpenedBytes])
	return message.OK
}

func (c *conn) opened(digest [32]byte) int {
	for i := range c.spaces {
		if c.spaces[i].digest == digest {
			return i
		}
	}
	return -1
}

func (c *conn) stats(j *job) message.Status {
	text, err := c.server.statsJSON(c.visible)
	if err != nil {
		return j.refusal(err)
	}
	if len(text) > message.MaxStatsBytes {
		j.say(fmt.Sprintf("the stats have %d bytes; allowed: %d", len(text), message.MaxStatsBytes))
		return message.Failed
	}
	j.out = append(j.out, text...)
	return message.OK
}

func (c *conn) list(j *job) message.Status {
	var cursor uint64
	prefix, from := j.in[:j.said.KeyBytes], j.in[j.said.KeyBytes:]
	switch len(from) {
	case 0:
	case 8:
		cursor = message.Handle(from, 0)
	default:
		return message.Malformed
	}
	most := min(int(j.said.Bytes), message.MaxKeys)
	if most == 0 {
		most = message.MaxKeys
	}
	keys, next := c.server.cfg.Store.List(j.space.ns, prefix, cursor, most)
	var on []byte
	if next != 0 {
		on = message.AppendHandle(nil, next)
	}
	j.out = message.AppendListed(j.out, on, keys)
	return message.OK
}

// refusal is the status of an engine's error, with its text.
func (j *job) refusal(err error) message.Status {
	status := message.Failed
	for _, known := range []struct {
		err    error
		status message.Status
	}{
		{store.ErrExists, message.Existing},
		{store.ErrConflict, message.Conflict},
		{store.ErrTooLarge, message.TooLarge},
		{store.ErrFull, message.Full},
		{store.ErrWouldBlock, message.WouldBlock},
		{store.ErrNamespaces, message.Quota},
		{store.ErrQuota, message.Quota},
		{store.ErrClosed, message.Closing},
		{store.ErrUnreadable, message.Unreadable},
	} {
		if errors.Is(err, known.err) {
			status = known.status
			break
		}
	}
	switch status {
	case message.TooLarge, message.Quota, message.Failed, message.Unreadable:
		j.say(err.Error())
	}
	return status
}

// say is the text of a refusal.
func (j *job) say(text string) {
	j.out = append(j.out[:0], text[:min(len(text), message.MaxTextBytes)]...)
}
