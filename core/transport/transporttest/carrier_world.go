package transporttest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// carrierTest is what one case works with: transports, endpoints and memory,
// and a book of what was posted and has ended. Only posting is for several
// goroutines.
type carrierTest struct {
	*testing.T
	harness     TransportHarness
	seed        uint64
	timeout     time.Duration
	transports  []transport.Transport
	gone        map[int]bool // killed, or closed by the case
	memories    []*memory
	completions []transport.Completion
	events      [16]transport.Event

	mu     sync.Mutex
	ends   []*end
	lastID uint64
}

// end is an endpoint and its book.
type end struct {
	c      *carrierTest
	at     int // index of its transport
	ep     transport.Endpoint
	posted map[uint64]transport.Opcode
	done   map[uint64]transport.Completion
	failed int // reports of EventEndpointFailed
}

// memory is registered memory of one transport.
type memory struct {
	at     int
	all    []byte // what was allocated
	mem    []byte // what is registered, in the middle of it
	region transport.Region
	free   func()
}

// guardBytes lie before and behind registered memory.
const guardBytes = 4096

func (c *carrierTest) start(n int) {
	c.Helper()
	c.transports = c.harness.New(c.T, n)
	c.gone = map[int]bool{}
	if len(c.transports) != n {
		c.Fatalf("harness made %d transports, not %d", len(c.transports), n)
	}
}

func (c *carrierTest) rand() *rand.Rand { return rand.New(rand.NewPCG(c.seed, 7)) }

// fill puts bytes into b that no other call with another tag does.
func (c *carrierTest) fill(b []byte, tag uint64) {
	r := rand.New(rand.NewPCG(c.seed, tag))
	var word [8]byte
	for len(b) > 0 {
		binary.LittleEndian.PutUint64(word[:], r.Uint64())
		b = b[copy(b, word[:]):]
	}
}

func (c *carrierTest) filled(n int, tag uint64) []byte {
	b := make([]byte, n)
	c.fill(b, tag)
	return b
}

func (c *carrierTest) rawMemory(sizeBytes int) ([]byte, func()) {
	if c.harness.Memory == nil {
		return make([]byte, sizeBytes), func() {}
	}
	return c.harness.Memory(c.T, sizeBytes)
}

// memory registers sizeBytes bytes with a transport.
func (c *carrierTest) memory(at, sizeBytes int, access transport.Access) *memory {
	c.Helper()
	all, free := c.rawMemory(sizeBytes + 2*guardBytes)
	m := &memory{at: at, all: all, mem: all[guardBytes : guardBytes+sizeBytes : guardBytes+sizeBytes], free: free}
	region, err := c.transports[at].Register(m.mem, access)
	if err != nil {
		free()
		c.Fatalf("register %d bytes: %v", sizeBytes, err)
	}
	m.region = region
	c.memories = append(c.memories, m)
	return m
}

// piece is n bytes of the memory at off.
func (m *memory) piece(off, n int) transport.Piece {
	return transport.Piece{Region: m.region, Off: off, Bytes: n}
}

func (m *memory) pieces(off, n int) []transport.Piece { return []transport.Piece{m.piece(off, n)} }

func (c *carrierTest) spec() transport.EndpointSpec {
	l := c.transports[0].Limits()
	return transport.EndpointSpec{SendDepth: min(16, l.SendDepth), RecvDepth: min(16, l.RecvDepth)}
}

func (c *carrierTest) endpoint(at int, spec transport.EndpointSpec) *end {
	c.Helper()
	ep, err := c.transports[at].NewEndpoint(spec)
	if err != nil {
		c.Fatalf("new endpoint: %v", err)
	}
	e := &end{c: c, at: at, ep: ep, posted: map[uint64]transport.Opcode{}, done: map[uint64]transport.Completion{}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, e)
	return e
}

// connect brings two endpoints together.
func (c *carrierTest) connect(a, b *end) {
	c.Helper()
	errs := make(chan error, 2)
	deadline := time.Now().Add(c.timeout)
	go func() { errs <- a.ep.Connect(b.ep.Local(), deadline) }()
	go func() { errs <- b.ep.Connect(a.ep.Local(), deadline) }()
	if err := errors.Join(<-errs, <-errs); err != nil {
		c.Fatalf("connect: %v", err)
	}
	if a.ep.State() != transport.StateReady || b.ep.State() != transport.StateReady {
		c.Fatalf("connected, and in states %d and %d", a.ep.State(), b.ep.State())
	}
}

// pair makes two connected endpoints.
func (c *carrierTest) pair(i, j int) (a, b *end) {
	c.Helper()
	a, b = c.endpoint(i, c.spec()), c.endpoint(j, c.spec())
	c.connect(a, b)
	return a, b
}

func (e *end) newID(op transport.Opcode) uint64 {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	e.c.lastID++
	e.posted[e.c.lastID] = op
	return e.c.lastID
}

func (e *end) unpost(id uint64) {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	delete(e.posted, id)
}

// trySend posts a request under an ID of the book.
func (e *end) trySend(q transport.SendRequest) (uint64, error) {
	q.ID = e.newID(q.Op)
	n, err := e.ep.PostSend([]transport.SendRequest{q})
	if (n == 1) != (err == nil) {
		e.c.Errorf("post of one request: %d posted, error %v", n, err)
	}
	if err != nil {
		e.unpost(q.ID)
	}
	return q.ID, err
}

func (e *end) tryRecv(pieces []transport.Piece) (uint64, error) {
	id := e.newID(transport.OpRecv)
	n, err := e.ep.PostRecv([]transport.RecvRequest{{ID: id, Local: pieces}})
	if (n == 1) != (err == nil) {
		e.c.Errorf("post of one receive: %d posted, error %v", n, err)
	}
	if err != nil {
		e.unpost(id)
	}
	return id, err
}

func (e *end) send(q transport.SendRequest) uint64 {
	e.c.Helper()
	id, err := e.trySend(q)
	if err != nil {
		e.c.Fatalf("post send: %v", err)
	}
	return id
}

func (e *end) recv(pieces []transport.Piece) uint64 {
	e.c.Helper()
	id, err := e.tryRecv(pieces)
	if err != nil {
		e.c.Fatalf("post recv: %v", err)
	}
	return id
}

func (c *carrierTest) find(at int, id transport.EndpointID) *end {
	for _, e := range c.ends {
		if e.at == at && e.ep.ID() == id {
			return e
		}
	}
	return nil
}

// poll enters what has happened into the books.
func (c *carrierTest) poll() {
	c.Helper()
	for at, t := range c.transports {
		if c.gone[at] {
			continue
		}
		n, err := t.Poll(c.completions)
		if err != nil {
			c.Fatalf("poll: %v", err)
		}
		for _, done := range c.completions[:n] {
			c.enter(at, done)
		}
		for _, event := range c.events[:t.PollEvents(c.events[:])] {
			c.enterEvent(at, event)
		}
	}
}

func (c *carrierTest) enter(at int, done transport.Completion) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.find(at, done.Endpoint)
	if e == nil {
		c.Errorf("completion of an endpoint that is not there: %+v", done)
		return
	}
	op, known := e.posted[done.ID]
	if !known {
		c.Errorf("completion of a request that was not posted: %+v", done)
	}
	if before, twice := e.done[done.ID]; twice {
		c.Errorf("two completions of one request: %+v and %+v", before, done)
	}
	e.done[done.ID] = done
	if done.Status != transport.StatusOK {
		if s := e.ep.State(); s != transport.StateError {
			c.Errorf("after %+v the endpoint is in state %d", done, s)
		}
		return
	}
	if done.Op != op && (op != transport.OpRecv || done.Op != transport.OpRecvImm) {
		c.Errorf("posted as operation %d, ended as %+v", op, done)
	}
}

func (c *carrierTest) enterEvent(at int, event transport.Event) {
	if event.Kind != transport.EventEndpointFailed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.find(at, event.Endpoint)
	if e == nil {
		c.Errorf("an endpoint failed that is not there: %+v", event)
		return
	}
	if e.failed++; e.failed > 1 {
		c.Errorf("endpoint %d fails twice: %+v", event.Endpoint, event)
	}
	if e.ep.State() < transport.StateError {
		c.Errorf("endpoint %d failed and is in state %d", event.Endpoint, e.ep.State())
	}
}

// until polls until something is the case.
func (c *carrierTest) until(what string, is func() bool) {
	c.Helper()
	if !c.within(is) {
		c.Fatalf("not so after %v: %s\n%s", c.timeout, what, c.books())
	}
}

func (c *carrierTest) within(is func() bool) bool {
	c.Helper()
	for end := time.Now().Add(c.timeout); ; {
		c.poll()
		if is() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		for at, t := range c.transports {
			if !c.gone[at] {
				if err := t.Wait(200 * time.Microsecond); err != nil {
					c.Fatalf("wait: %v", err)
				}
			}
		}
	}
}

func (c *carrierTest) books() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	for _, e := range c.ends {
		text += fmt.Sprintf("endpoint %d of transport %d: state %d, %d posted, %d ended\n",
			e.ep.ID(), e.at, e.ep.State(), len(e.posted), len(e.done))
	}
	return text
}

func (e *end) outstanding() int {
	e.c.mu.Lock()
	defer e.c.mu.Unlock()
	return len(e.posted) - len(e.done)
}

// await returns the completion of a request.
func (e *end) await(id uint64) transport.Completion {
	e.c.Helper()
	e.c.until(fmt.Sprintf("request %d has ended", id), func() bool {
		e.c.mu.Lock()
		defer e.c.mu.Unlock()
		_, done := e.done[id]
		return done
	})
	return e.done[id]
}

// awaitOK is await for a request that succeeds with n bytes.
func (e *end) awaitOK(id uint64, n int) transport.Completion {
	e.c.Helper()
	done := e.await(id)
	if done.Status != transport.StatusOK || int(done.NumBytes) != n {
		e.c.Fatalf("want success with %d bytes, got %+v", n, done)
	}
	return done
}
