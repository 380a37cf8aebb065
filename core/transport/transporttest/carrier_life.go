package transporttest

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// carrierDepthSend fills the sending side: nothing beyond the bound is
// accepted, nothing below it is lost.
func carrierDepthSend(c *carrierTest) {
	c.start(2)
	const depth = 3
	a := c.endpoint(0, transport.EndpointSpec{SendDepth: depth, RecvDepth: 1})
	b := c.endpoint(1, c.spec())
	c.connect(a, b)
	for range 2 * depth {
		b.recv(nil)
	}
	for range 2 {
		requests := make([]transport.SendRequest, depth+2)
		for i := range requests {
			requests[i] = transport.SendRequest{ID: a.newID(transport.OpSend), Op: transport.OpSend}
		}
		n, err := a.ep.PostSend(requests)
		if n != depth || !errors.Is(err, transport.ErrWouldBlock) {
			c.Fatalf("%d requests at depth %d: %d posted, %v", len(requests), depth, n, err)
		}
		for _, q := range requests[depth:] {
			a.unpost(q.ID)
		}
		if n, err := a.ep.PostSend(nil); n != 0 || err != nil {
			c.Errorf("post of nothing at the bound: %d, %v", n, err)
		}
		c.until("those that were accepted have ended", func() bool { return a.outstanding() == 0 })
	}
	c.until("all have arrived", func() bool { return b.outstanding() == 0 })
}

func carrierDepthRecv(c *carrierTest) {
	c.start(2)
	const depth = 3
	a := c.endpoint(0, c.spec())
	b := c.endpoint(1, transport.EndpointSpec{SendDepth: 1, RecvDepth: depth})
	for range depth {
		b.recv(nil)
	}
	if _, err := b.tryRecv(nil); !errors.Is(err, transport.ErrWouldBlock) {
		c.Errorf("one receive beyond RecvDepth: %v", err)
	}
	c.connect(a, b)
	for range depth {
		a.awaitOK(a.send(transport.SendRequest{Op: transport.OpSend}), 0)
	}
	c.until("all have arrived", func() bool { return b.outstanding() == 0 })
	b.recv(nil)
}

func carrierRetireFlushes(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	m := c.memory(0, 64, 0)
	ids := []uint64{a.recv(m.pieces(0, 64)), a.recv(nil)}
	for range 2 {
		if err := a.ep.Retire(); err != nil {
			c.Fatalf("retire: %v", err)
		}
	}
	ids = append(ids, a.recv(nil), a.send(transport.SendRequest{Op: transport.OpSend}))
	for _, id := range ids {
		if done := a.await(id); done.Status != transport.StatusFlushed {
			c.Errorf("ends as %+v", done)
		}
	}
	if a.failed != 0 {
		c.Error("an endpoint that was retired is reported as failed")
	}
	if err := a.ep.Connect(b.ep.Local(), soon()); !errors.Is(err, transport.ErrState) {
		c.Errorf("connect of a retired endpoint: %v", err)
	}
	idle := c.endpoint(0, c.spec()) // before Connect, too
	id := idle.recv(nil)
	retire(c, idle)
	if done := idle.done[id]; done.Status != transport.StatusFlushed {
		c.Errorf("receive of a new endpoint that is retired ends as %+v", done)
	}
}

// carrierRetireUnderLoad retires in the middle of everything. A request that
// has a completion has released its memory: those bytes stay.
func carrierRetireUnderLoad(c *carrierTest) {
	c.start(2)
	const size = 64 << 10
	const own = 5 * size // for receives and reads; peers write behind it
	local := c.memory(0, size*8, transport.AccessWrite|transport.AccessRead)
	remote := c.memory(1, size*8, transport.AccessWrite|transport.AccessRead)
	for round := range 8 {
		a, b := c.pair(0, 1)
		c.load(a, local, remote, size)
		c.load(b, remote, local, size)
		for range round {
			c.poll()
		}
		if err := a.ep.Retire(); err != nil {
			c.Fatalf("retire: %v", err)
		}
		c.until("what was outstanding has ended", func() bool { return a.outstanding() == 0 })
		c.fill(local.mem[:own], uint64(round))
		want := bytes.Clone(local.mem[:own])
		retire(c, b) // takes some time
		if !bytes.Equal(local.mem[:own], want) {
			c.Error("memory of requests that have ended was written")
		}
		retire(c, a)
	}
}

// load posts some of everything.
func (c *carrierTest) load(e *end, m, peer *memory, size int) {
	c.Helper()
	for i := range 4 {
		e.recv(m.pieces(i*size, size))
	}
	for i, op := range []transport.Opcode{transport.OpRead, transport.OpWrite, transport.OpWriteImm, transport.OpSend} {
		e.send(transport.SendRequest{
			Op: op, Local: m.pieces((4+i)*size, size), Remote: peer.region.Remote(), RemoteOff: uint64((4 + i) * size),
		})
	}
}

// carrierPeerRetires: whatever a carrier's peer is told, its requests end.
func carrierPeerRetires(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	kept := a.recv(nil)
	retire(c, b)
	id := a.send(transport.SendRequest{Op: transport.OpSend})
	if done := a.await(id); done.Status == transport.StatusOK {
		c.Errorf("sent to a retired endpoint: %+v", done)
	}
	if done := a.await(kept); done.Status != transport.StatusFlushed {
		c.Errorf("a receive ends as %+v", done)
	}
	c.until("the failure was reported", func() bool { return a.failed == 1 })
	fresh, other := c.pair(0, 1) // the transports are as good as before
	received := other.recv(nil)
	fresh.send(transport.SendRequest{Op: transport.OpSend})
	other.awaitOK(received, 0)
}

func carrierCloseIsBusy(c *carrierTest) {
	c.start(2)
	a, _ := c.pair(0, 1)
	if err := a.ep.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close of a ready endpoint: %v", err)
	}
	if s := a.ep.State(); s != transport.StateReady {
		c.Errorf("an early close has changed the state to %d", s)
	}
	id := a.recv(nil)
	if err := a.ep.Retire(); err != nil {
		c.Fatal(err)
	}
	time.Sleep(time.Millisecond) // the completion may well be there
	if err := a.ep.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close before the completion was polled: %v", err)
	}
	a.await(id)
	if err := a.ep.Close(); err != nil {
		c.Errorf("close: %v", err)
	}
	mustForbidAll(c, a)
}

// carrierCloseAfterWait: what Wait has found is outstanding until it is polled,
// wherever the carrier keeps it.
func carrierCloseAfterWait(c *carrierTest) {
	c.start(2)
	a, _ := c.pair(0, 1)
	id := a.recv(nil)
	if err := a.ep.Retire(); err != nil {
		c.Fatal(err)
	}
	for range 10 { // it may return for something else
		if err := c.transports[0].Wait(time.Millisecond); err != nil {
			c.Fatal(err)
		}
	}
	if err := a.ep.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close before the completion was polled: %v", err)
	}
	a.await(id)
	if err := a.ep.Close(); err != nil {
		c.Errorf("close: %v", err)
	}
}

func carrierTransportClose(c *carrierTest) {
	c.start(1)
	t := c.transports[0]
	e := c.endpoint(0, c.spec())
	if err := t.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close with an endpoint: %v", err)
	}
	if err := e.ep.Close(); err != nil {
		c.Fatal(err)
	}
	m := c.memory(0, 64, 0)
	if err := t.Close(); !errors.Is(err, transport.ErrBusy) {
		c.Errorf("close with a region: %v", err)
	}
	if err := m.region.Close(); err != nil {
		c.Fatal(err)
	}
	if err := t.Close(); err != nil {
		c.Fatalf("close: %v", err)
	}
	c.gone[0] = true
	if err := t.Close(); err != nil {
		c.Errorf("close a second time: %v", err)
	}
	if _, err := t.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1}); err == nil {
		c.Error("a closed transport makes endpoints")
	}
	if _, err := t.Register(m.mem, 0); err == nil {
		c.Error("a closed transport registers memory")
	}
	if _, err := t.Poll(c.completions); err == nil {
		c.Error("a closed transport can be polled")
	}
	if err := t.Wait(c.timeout); err == nil {
		c.Error("a closed transport can be waited for")
	}
	t.Wake()
}

// carrierVanish loses a peer in the middle of everything, beside another.
func carrierVanish(c *carrierTest) {
	c.start(3)
	const size = 64 << 10
	local := c.memory(0, size*8, transport.AccessWrite|transport.AccessRead)
	remote := c.memory(1, size*8, transport.AccessWrite|transport.AccessRead)
	a, b := c.pair(0, 1)
	sender, receiver := c.pair(0, 2)
	c.load(b, remote, local, size)
	c.load(a, local, remote, size)
	c.kill(1)
	id := a.send(transport.SendRequest{Op: transport.OpSend})
	if done := a.await(id); done.Status == transport.StatusOK {
		c.Errorf("sent to a peer that is gone: %+v", done)
	}
	c.until("everything outstanding has ended", func() bool { return a.outstanding() == 0 })
	c.until("the failure was reported", func() bool { return a.failed == 1 })
	received := receiver.recv(nil)
	sender.awaitOK(sender.send(transport.SendRequest{Op: transport.OpSend}), 0)
	receiver.awaitOK(received, 0)
	if sender.failed+receiver.failed != 0 {
		c.Error("an endpoint failed that has nothing to do with the lost peer")
	}
}

// kill lets a transport vanish, with its memory.
func (c *carrierTest) kill(at int) {
	c.harness.Kill(c.T, c.transports[at])
	c.gone[at] = true
	for _, m := range c.memories {
		if m.at == at {
			m.region = nil
		}
	}
}

// carrierLeavesNothing counts goroutines and descriptors around some lives.
func carrierLeavesNothing(c *carrierTest) {
	life := func() {
		c.Run("life", func(t *testing.T) {
			one := newCarrierTest(t, c.harness)
			one.start(2)
			a, b := one.pair(0, 1)
			id := b.recv(nil)
			a.send(transport.SendRequest{Op: transport.OpSend})
			b.awaitOK(id, 0)
		})
	}
	life() // what the process needs once
	goroutines, descriptors := runtime.NumGoroutine(), numDescriptors(c)
	for range 3 {
		life()
	}
	for end := time.Now().Add(c.timeout); runtime.NumGoroutine() > goroutines || numDescriptors(c) > descriptors; {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			c.Fatalf("%d goroutines, then %d; %d descriptors, then %d\n%s", goroutines, runtime.NumGoroutine(),
				descriptors, numDescriptors(c), buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

func numDescriptors(c *carrierTest) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		c.Logf("descriptors are not counted: %v", err)
	}
	return len(entries)
}
