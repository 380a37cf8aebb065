package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/local"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/store/tag"
	"github.com/moewire/moewire/core/wire"
)

// maxSpaces is how many namespaces one connection may open.
const maxSpaces = 16

// space is a namespace that a connection has opened.
type space struct {
	ns     store.NS
	digest [32]byte
	tagger *tag.Tagger
}

// conn is one client. Its reader does what requests ask; what takes time to write is written
// by its writer. Its contexts are its own. A client that does not read stops its own reader, once all of them
// wait for the writer: it costs their memory, and the blocks of one part.
type conn struct {
	server   *Server
	nc       net.Conn
	in       *stream.Reader
	key      uint32 // the id of the client's
	rights   rights.Rights
	reading  atomic.Uint64 // of the key file, at which key and rights were these
	secret   [32]byte      // masks the key of tags
	invited  [32]byte      // the secret of share
	spaces   []space
	handles  handles
	contexts *pool.Pool[*job]
	current  *job                     // not answered yet
	handover atomic.Pointer[handover] // what share has begun
	shared   atomic.Bool              // the client has the arena
	bounce   *local.View              // where blocks of its puts lie that it does not send; nil: none

	waiting    atomic.Int32 // replies that the writer has not written
	replies    chan reply
	others     sync.WaitGroup // what else makes replies
	rechecking sync.Mutex     // one complaint at a time
	lost       atomic.Bool    // nothing reads replies
	noted      atomic.Bool    // its end was counted

	writing sync.Mutex // out, and the following
	out     *stream.Writer
	head    wire.Head
	data    []byte // what had to be read of the storage
	broken  bool
}

// reply is what is to be written: a context's, or a status alone.
type reply struct {
	job     *job
	code    message.Code
	status  message.Status
	request uint64
}

// began is when the head of the request came; the zero Time for one that got no context.
func (r *reply) began() time.Time {
	if r.job == nil {
		return time.Time{}
	}
	return r.job.began
}

// Format never shows a secret, whatever the verb.
func (*conn) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "server.conn") }

// newConn makes a connection's contexts: as many as its client is granted. The one that is added belongs to a
// reply that the client may have seen before this side knows that it was written.
// reading is that of the key file before the handshake.
func newConn(s *Server, nc net.Conn, session *wire.Session, reading uint64) (*conn, error) {
	contexts, err := pool.New(pool.Config[*job]{Cap: s.cfg.Contexts + 1, Make: newJob})
	if err != nil {
		return nil, err
	}
	c := &conn{
		server: s, nc: nc, secret: session.Export(message.TagSecret), invited: session.Export(message.ShareSecret),
		contexts: contexts, replies: make(chan reply, s.cfg.Contexts+1),
	}
	c.handles.allUnfinished = &s.unfinished
	c.shared.Store(isLocal(nc))
	c.bounce = bounceOf(nc)
	if err := c.grant(session.KeyID(), reading); err != nil {
		return nil, err
	}
	c.in = stream.NewReader(nc, session, stream.Limits{Idle: s.cfg.Idle, Total: s.cfg.Total})
	c.out = stream.NewWriter(nc, session, stream.Limits{Idle: s.cfg.Idle, Total: s.cfg.Idle}, nil)
	return c, nil
}

// serve reads until the connection ends, and returns when nothing of it is left.
func (c *conn) serve() {
	done := make(chan struct{})
	safego.Go("store: writer", func() { defer close(done); c.write() }, c.report)
	defer c.end(done)
	err := c.read()
	c.lost.Store(!errors.Is(err, stream.ErrStopped))
	c.note(err)
	if !errors.Is(err, stream.ErrStopped) {
		_ = c.nc.Close() // else the last replies are written
	}
}

// end waits for what uses the connection, also if the reader has panicked.
func (c *conn) end(done chan struct{}) {
	if c.current != nil {
		c.release(c.current)
	}
	if h := c.handover.Load(); h != nil {
		_ = h.delivery.Close()
	}
	c.others.Wait()
	close(c.replies)
	<-done
	_ = c.nc.Close()
	c.handles.close()
	for i := range c.spaces {
		c.server.cfg.Store.Leave(c.spaces[i].ns)
	}
	c.contexts.Close()
}

func (c *conn) report(err error) {
	_ = c.nc.Close()
	c.server.cfg.Log(err.Error())
}

// note counts why a connection ended, the first cause of its reader and its writer.
func (c *conn) note(err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, stream.ErrStopped) || c.noted.Swap(true) {
		return
	}
	c.server.counters.Lost.Add(1)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.counters.Idle.Add(1)
	}
	if c.isRevoked() {
		c.server.counters.Revoked.Add(1)
		err = errRevoked
	}
	c.server.logRare(&c.server.lost, fmt.Sprintf("%v was lost: %v", c.nc.RemoteAddr(), err))
}

func (c *conn) read() error {
	for {
		head, err := c.in.Next()
		if err != nil {
			return err
		}
		if c.isRevoked() {
			return errRevoked
		}
		if err := c.handle(&head); err != nil {
			return err
		}
	}
}

// handle does one request. An error ends the connection.
func (c *conn) handle(head *wire.Head) error {
	s := c.server
	if message.CodeName(head.Code) == "" || head.Reply || head.Refused {
		s.counters.UnknownCodes.Add(1)
		return c.refuse(head, message.Unknown)
	}
	s.counters.requests[head.Code].Add(1)
	j := c.context()
	if j == nil {
		s.counters.Capped.Add(1)
		return c.refuse(head, message.WouldBlock)
	}
	j.begin(head)
	c.current = j // end releases it if there is no answer
	if err := c.perform(j, head); err != nil {
		return err
	}
	c.current = nil
	return nil
}

// context leases a context, if this client may have one more.
func (c *conn) context() *job {
	lease, err := c.contexts.Get()
	if err != nil {
		return nil
	}
	lease.Value.lease = lease
	return lease.Value
}

func (c *conn) release(j *job) {
	j.end()
	c.handles.unuse(j.held)
	j.held = nil
	_ = c.contexts.Put(j.lease)
}

// refuse skips a payload and answers with a status alone.
func (c *conn) refuse(head *wire.Head, status message.Status) error {
	if err := c.in.End(); err != nil {
		return err
	}
	c.answer(reply{code: head.Code, status: status, request: head.Request})
	return nil
}

// answer writes a reply at once, or leaves it to the writer if that has something to do or
// the client has asked for more meanwhile.
func (c *conn) answer(r reply) {
	c.current = nil
	if c.waiting.Load() == 0 && !c.in.Buffered() {
		c.send(r, true)
		return
	}
	c.waiting.Add(1)
	c.replies <- r
}

// write is the writer. When the connection is broken, by a defect too, it lets go of what
// comes: the reader must not wait for it.
func (c *conn) write() {
	for {
		err := safego.Call("store: writer", c.writeReplies)
		if err == nil {
			return
		}
		c.writing.Lock()
		c.broken = true
		c.writing.Unlock()
		c.report(err)
	}
}

func (c *conn) writeReplies() {
	for r := range c.replies {
		c.send(r, c.waiting.Add(-1) == 0)
	}
}

func (c *conn) send(r reply, flush bool) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if r.job != nil {
		r.code, r.status, r.request = r.job.code, r.job.status, r.job.request
	}
	c.server.counters.replied(&r)
	if c.broken {
		if r.job != nil {
			c.release(r.job)
		}
		return
	}
	c.head = wire.Head{Code: r.code, Reply: true, Refused: r.status.Refuses(), Status: uint16(r.status), Request: r.request}
	began := r.began()
	err := c.compose(r.job)
	if err == nil && flush {
		err = c.out.Flush()
	}
	if err == nil && !began.IsZero() {
		c.server.counters.answered(r.code, began)
	}
	if err != nil {
		c.broken = true
		c.note(err) // before the reader notes that the connection was closed
		_ = c.nc.Close()
	}
}

// compose writes the messages of a reply and lets go of its context, before the last byte is
// written if that needs nothing of it.
func (c *conn) compose(j *job) error {
	if j == nil {
		return c.out.Append(&c.head, nil)
	}
	defer c.release(j)
	switch {
	case j.sends:
		return c.parts(j)
	case j.code == message.Read && j.status == message.OK:
		return c.piece(j)
	}
	j.pieces = append(j.pieces[:0], j.out)
	return c.out.Append(&c.head, j.pieces)
}

// until is when something ends that a client wants for so many µs.
func (c *conn) until(us uint64) time.Time {
	hold := c.server.cfg.Hold
	if us > 0 && us < uint64(hold/time.Microsecond) {
		hold = time.Duration(us) * time.Microsecond
	}
	return time.Now().Add(hold)
}
