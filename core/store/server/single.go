package server

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"
	"time"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// keptSingleBytes is how much memory such a connection keeps between two requests.
const keptSingleBytes = 1 << 20

// single is a connection of single requests: one after the other, each answered before the
// next one is read. What is not genuine ends it without an answer.
type single struct {
	server *Server
	nc     net.Conn
	waits  bool // for a request; guarded by the server's mu
	frame  [wire.MaxSingleFrameBytes]byte
	// reading is that of the key file before the request was found genuine: its key may be another one afterwards.
	reading uint64
	in      []byte
	out     []byte

	space  space // of the request before
	key    [1][]byte
	yes    [1]bool
	leases [1]Lease
}

// perform reads a request's payload, does it and answers.
func (c *single) perform(head *wire.SingleHead) error {
	if cap(c.in) > keptSingleBytes || cap(c.out) > keptSingleBytes {
		c.in, c.out = nil, nil
	}
	c.in = slices.Grow(c.in[:0], int(head.PayloadBytes))[:head.PayloadBytes]
	if err := c.read(c.in, time.Now().Add(c.server.cfg.Total)); err != nil {
		return err
	}
	if !c.server.signed.Intact(head, c.in) {
		return wire.ErrPayload
	}
	c.server.counters.Singles.Add(1)
	status, reply := c.do(head)
	return c.answer(head, status, reply)
}

func (c *single) answer(head *wire.SingleHead, status message.Status, payload []byte) error {
	head.Status, head.Extra = uint16(status), nil
	sealed, err := c.server.signed.Seal(c.frame[:0], head, payload)
	if err != nil {
		return err
	}
	until := time.Now().Add(c.server.cfg.Total)
	if err := c.write(sealed, until); err != nil {
		return err
	}
	return c.write(payload, until)
}

// do does a request. Its Extra is the digest of a namespace and a key.
func (c *single) do(head *wire.SingleHead) (message.Status, []byte) {
	if head.Code == message.Open {
		return c.open(head)
	}
	const digest = len(c.space.digest)
	if n := len(head.Extra) - digest; n < 1 || n > message.MaxKeyBytes || head.Code != message.Put && len(c.in) > 0 {
		return message.Malformed, nil
	}
	if !c.may(head) {
		return message.Denied, nil
	}
	if err := c.enter([32]byte(head.Extra)); err != nil {
		return (&job{}).refusal(err), nil
	}
	key := head.Extra[digest:]
	c.key[0] = key
	engine, ns := c.server.cfg.Store, c.space.ns
	switch head.Code {
	case message.Put:
		return c.put(key), nil
	case message.Get:
		return c.get(key)
	case message.Exists:
		return found(engine.Exists(ns, c.key[:], c.yes[:])), nil
	case message.Delete:
		return found(engine.Delete(ns, c.key[:], c.yes[:])), nil
	}
	return message.Unknown, nil
}

// may looks at the rights of the request's key, if it is still the one that the request was signed with.
func (c *single) may(head *wire.SingleHead) bool {
	digest := [32]byte(head.Extra)
	r, since, found := c.server.rightsOf(head.KeyID)
	return found && since <= c.reading && c.server.permit(head.KeyID, &r, head.Code, &digest) == ""
}

func found(n int) message.Status {
	if n == 0 {
		return message.Miss
	}
	return message.OK
}

// open says which life of a server this is, and how long a block may be.
func (c *single) open(head *wire.SingleHead) (message.Status, []byte) {
	if len(head.Extra) > 0 || len(c.in) > 0 {
		return message.Malformed, nil
	}
	most := min(c.server.cfg.Store.MaxBlockBytes(message.MaxKeyBytes), maxSingleBytes)
	return message.OK, binary.LittleEndian.AppendUint32(bytes.Clone(c.server.boot[:]), uint32(most))
}

// enter opens a namespace, unless the request before was about it.
func (c *single) enter(digest [32]byte) error {
	if c.space.tagger != nil && c.space.digest == digest {
		return nil
	}
	engine := c.server.cfg.Store
	ns, err := engine.Namespace(digest, "")
	if err == nil {
		c.leave()
		c.space = space{ns: ns, digest: digest, tagger: tag.New(engine.TagKey(), digest)}
	}
	return err
}

// leave ends what enter has begun.
func (c *single) leave() {
	if c.space.tagger != nil {
		c.server.cfg.Store.Leave(c.space.ns)
		c.space = space{}
	}
}

// put stores a block that is there as a whole, and makes its tag.
func (c *single) put(key []byte) message.Status {
	w, err := c.server.cfg.Store.Allocate(store.Allocation{
		NS: c.space.ns, Key: key, Bytes: int64(len(c.in)), Tag: c.space.tagger.Of(key, c.in),
	})
	if err == nil {
		defer w.Release()
		copy(w.Buffer(), c.in)
		err = w.Commit()
	}
	if err != nil {
		return (&job{}).refusal(err)
	}
	c.server.counters.BytesIn.Add(uint64(len(c.in)))
	return message.OK
}

// get reads a block and compares its tag, as a client with a session does for itself.
func (c *single) get(key []byte) (message.Status, []byte) {
	c.server.cfg.Store.Acquire(c.space.ns, c.key[:], c.leases[:])
	l := &c.leases[0]
	defer func() { l.Release(); *l = Lease{} }()
	if !l.Held() {
		c.server.counters.Misses.Add(1)
		return message.Miss, nil
	}
	if l.Bytes() > maxSingleBytes {
		return message.TooLarge, nil
	}
	c.out = slices.Grow(c.out[:0], int(l.Bytes()))[:l.Bytes()]
	if err := l.Read(0, c.out); err != nil {
		c.server.counters.ReadFailed.Add(1)
		return message.Miss, nil
	}
	if c.space.tagger.Of(key, c.out) != l.Tag() {
		c.server.counters.BadReads.Add(1)
		l.Bad()
		return message.Miss, nil
	}
	c.server.counters.Hits.Add(1)
	c.server.counters.BytesOut.Add(uint64(len(c.out)))
	return message.OK, c.out
}
