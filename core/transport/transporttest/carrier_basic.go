package transporttest

import (
	"errors"
	"testing"

	"github.com/moewire/moewire/core/transport"
)

func carrierIdentity(c *carrierTest) {
	c.start(2)
	for _, t := range c.transports {
		if t.Name() == "" || t.Name() != c.transports[0].Name() || t.Device() == "" {
			c.Errorf("name %q, device %q", t.Name(), t.Device())
		}
		l := t.Limits()
		if l.NumEndpoints < 1 || l.SendDepth < 1 || l.RecvDepth < 1 || l.NumPieces < 1 ||
			l.InlineBytes < 0 || l.MaxRequestBytes < 1 {
			c.Errorf("a limit is 0: %+v", l)
		}
		if n := t.PollEvents(c.events[:]); n != 0 {
			c.Errorf("%d events of a new transport: %+v", n, c.events[:n])
		}
		if n, err := t.Poll(c.completions); n != 0 || err != nil {
			c.Errorf("poll of a new transport: %d, %v", n, err)
		}
		if n, err := t.Poll(nil); n != 0 || err != nil {
			c.Errorf("poll into nothing: %d, %v", n, err)
		}
	}
	seen := map[transport.EndpointID]bool{}
	for range 4 {
		e := c.endpoint(0, c.spec())
		if seen[e.ep.ID()] {
			c.Errorf("endpoint %d is there twice", e.ep.ID())
		}
		seen[e.ep.ID()] = true
		if n := len(e.ep.Local()); n < 1 || n > transport.MaxAddressBytes {
			c.Errorf("address of %d bytes", n)
		}
		if e.ep.State() != transport.StateNew {
			c.Errorf("new endpoint in state %d", e.ep.State())
		}
	}
}

func carrierEndpointBounds(c *carrierTest) {
	c.start(1)
	t, l := c.transports[0], c.transports[0].Limits()
	for _, s := range []transport.EndpointSpec{
		{SendDepth: 0, RecvDepth: 1},
		{SendDepth: 1, RecvDepth: 0},
		{SendDepth: -1, RecvDepth: 1},
		{SendDepth: l.SendDepth + 1, RecvDepth: 1},
		{SendDepth: 1, RecvDepth: l.RecvDepth + 1},
	} {
		if _, err := t.NewEndpoint(s); err == nil {
			c.Errorf("made an endpoint of %+v within %+v", s, l)
		}
	}
	c.endpoint(0, transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	const most = 64 // making them costs
	for len(c.ends) < min(l.NumEndpoints, most) {
		c.endpoint(0, transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
	}
	if l.NumEndpoints > most {
		return
	}
	if _, err := t.NewEndpoint(c.spec()); !errors.Is(err, transport.ErrWouldBlock) {
		c.Errorf("one endpoint beyond NumEndpoints: %v", err)
	}
	if err := c.ends[0].ep.Close(); err != nil {
		c.Fatal(err)
	}
	c.endpoint(0, c.spec()) // there is room again
}

func carrierRegister(c *carrierTest) {
	c.start(1)
	if _, err := c.transports[0].Register(nil, transport.AccessWrite); err == nil {
		c.Error("registered nothing")
	}
	a := c.memory(0, 5000, 0)
	b := c.memory(0, 1, transport.AccessRead|transport.AccessWrite)
	for _, m := range []*memory{a, b} {
		got := m.region.Bytes()
		if len(got) != len(m.mem) || &got[0] != &m.mem[0] {
			c.Errorf("region is other memory: %d bytes for %d", len(got), len(m.mem))
		}
		if n := m.region.Remote().SizeBytes; n != uint64(len(m.mem)) {
			c.Errorf("region of %d bytes says %d", len(m.mem), n)
		}
	}
	if a.region.Remote() == b.region.Remote() {
		c.Error("two regions look the same to a peer")
	}
	again, err := c.transports[0].Register(a.mem, transport.AccessRead)
	if err != nil {
		c.Fatalf("registering memory a second time: %v", err)
	}
	if err := again.Close(); err != nil {
		c.Error(err)
	}
}

func carrierRegionIsHeld(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	m := c.memory(1, 64, 0)
	id := b.recv(m.pieces(0, 64))
	if err := m.region.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Fatalf("close of a region in an outstanding receive: %v", err)
	}
	a.send(transport.SendRequest{Op: transport.OpSend})
	b.awaitOK(id, 0)
	if err := m.region.Close(); err != nil {
		c.Errorf("close after the completion: %v", err)
	}
}

// carrierPollInParts takes completions one by one: none may get lost.
func carrierPollInParts(c *carrierTest) {
	c.start(2)
	c.completions = c.completions[:1]
	a, b := c.pair(0, 1)
	for range 5 {
		b.recv(nil)
	}
	for range 5 {
		a.send(transport.SendRequest{Op: transport.OpSend})
	}
	c.until("all have ended", func() bool { return a.outstanding() == 0 && b.outstanding() == 0 })
}

func carrierStatesForbid(c *carrierTest) {
	c.start(2)
	e := c.endpoint(0, c.spec())
	if _, err := e.trySend(transport.SendRequest{Op: transport.OpSend}); !errors.Is(err, transport.ErrState) {
		c.Errorf("send before the endpoint is ready: %v", err)
	}
	if err := e.ep.Close(); err != nil {
		c.Errorf("close of a new endpoint: %v", err)
	}
	mustForbidAll(c, e)
	held := c.endpoint(0, c.spec())
	held.recv(nil) // allowed before Connect
	if err := held.ep.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close of a new endpoint with a receive: %v", err)
	}
}

// mustForbidAll checks that a closed endpoint does nothing.
func mustForbidAll(c *carrierTest, e *end) {
	c.Helper()
	if _, err := e.trySend(transport.SendRequest{Op: transport.OpSend}); !errors.Is(err, transport.ErrState) {
		c.Errorf("send after close: %v", err)
	}
	if _, err := e.tryRecv(nil); !errors.Is(err, transport.ErrState) {
		c.Errorf("receive after close: %v", err)
	}
	if err := e.ep.Connect(e.ep.Local(), soon()); !errors.Is(err, transport.ErrState) {
		c.Errorf("connect after close: %v", err)
	}
	if err := e.ep.Retire(); err != nil {
		c.Errorf("retire after close: %v", err)
	}
	if s := e.ep.State(); s != transport.StateClosed {
		c.Errorf("state %d after close", s)
	}
}

// carrierAllocatesNothing measures a request of each kind.
func carrierAllocatesNothing(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	from, to := c.memory(0, 64, 0), c.memory(1, 64, transport.AccessRead|transport.AccessWrite)
	var sends []transport.SendRequest
	for _, op := range []transport.Opcode{transport.OpSend, transport.OpWriteImm, transport.OpWrite, transport.OpRead} {
		sends = append(sends, transport.SendRequest{Op: op, Local: from.pieces(0, 64), Remote: to.region.Remote()})
	}
	recvs := []transport.RecvRequest{{Local: to.pieces(0, 64)}, {Local: to.pieces(0, 64)}}
	round := func() {
		_, recvErr := b.ep.PostRecv(recvs)
		_, sendErr := a.ep.PostSend(sends)
		if recvErr != nil || sendErr != nil {
			c.Fatalf("post: %v, %v", recvErr, sendErr)
		}
		c.raw(a, len(sends))
		c.raw(b, len(recvs))
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		c.Errorf("%v allocations for four requests", n)
	}
}

// raw polls n completions of an endpoint's transport, past the book.
func (c *carrierTest) raw(e *end, n int) {
	for tries := 0; n > 0; tries++ {
		got, err := c.transports[e.at].Poll(c.completions)
		for _, done := range c.completions[:got] {
			if done.Status != transport.StatusOK {
				c.Fatalf("failed: %+v", done)
			}
		}
		if n -= got; err != nil || n < 0 || tries > 1e6 {
			c.Fatalf("poll: %v, %d completions are missing", err, n)
		}
		if n > 0 {
			if err := c.transports[e.at].Wait(c.timeout / 1e6); err != nil {
				c.Fatal(err)
			}
		}
	}
}
