package testenv

import (
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
)

// Relay passes TCP connections on and, while it is told to, resets each after
// so many bytes in one direction: in the middle of what is being sent.
type Relay struct {
	listener net.Listener
	work     sync.WaitGroup

	mu     sync.Mutex // guards what follows
	to     string
	conns  map[net.Conn]bool
	budget func() int64 // nil: without end
	resets int
	closed bool
}

// NewRelay listens at the loopback device until the test ends.
func NewRelay(t testing.TB) *Relay {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{listener: l, conns: map[net.Conn]bool{}}
	r.work.Add(1)
	go r.serve()
	t.Cleanup(r.close)
	return r
}

// Addr is where the relay listens.
func (r *Relay) Addr() netip.AddrPort { return netip.MustParseAddrPort(r.listener.Addr().String()) }

// PassTo says where connections go from now on.
func (r *Relay) PassTo(to netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to.String()
}

// Reset resets each connection that begins from now on after least to most
// bytes; most 0: none.
func (r *Relay) Reset(seed uint64, least, most int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 1))
	r.budget = func() int64 { return least + rng.Int64N(most-least+1) }
	if most == 0 {
		r.budget = nil
	}
}

// Cut resets all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		abort(c)
	}
}

// Resets is how many connections were reset in their middle.
func (r *Relay) Resets() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resets
}

func (r *Relay) serve() {
	defer r.work.Done()
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		to := r.to
		r.mu.Unlock()
		server, err := net.Dial("tcp", to)
		if err != nil {
			abort(client)
			continue
		}
		r.pass(client, server)
	}
}

func (r *Relay) pass(client, server net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		abort(client)
		abort(server)
		return
	}
	r.conns[client], r.conns[server] = true, true
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		budget := int64(1) << 62
		if r.budget != nil {
			budget = r.budget()
		}
		r.work.Add(1)
		go func() {
			defer r.work.Done()
			_, err := io.CopyN(way[1], way[0], budget)
			r.end(way[0], way[1], err == nil)
		}()
	}
}

func (r *Relay) end(a, b net.Conn, budgetUsed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if budgetUsed && r.conns[a] {
		r.resets++
	}
	delete(r.conns, a)
	delete(r.conns, b)
	abort(a)
	abort(b)
}

// abort makes the system send a reset.
func abort(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

func (r *Relay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.conns {
		abort(c)
	}
	r.mu.Unlock()
	r.work.Wait()
}
