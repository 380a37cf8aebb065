package transporttest

import (
	"bytes"
	"errors"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// soon is the deadline of a wait that has to time out.
func soon() time.Time { return time.Now().Add(300 * time.Millisecond) }

// carrierConnectOrders lets one side, or the other, come much later.
func carrierConnectOrders(c *carrierTest) {
	c.start(2)
	for _, first := range []int{0, 1} {
		e := [2]*end{c.endpoint(0, c.spec()), c.endpoint(1, c.spec())}
		a, b := e[first], e[1-first]
		id := a.recv(nil)
		errs := make(chan error, 1)
		go func() { errs <- a.ep.Connect(b.ep.Local(), time.Now().Add(c.timeout)) }()
		time.Sleep(20 * time.Millisecond)
		if err := b.ep.Connect(a.ep.Local(), time.Now().Add(c.timeout)); err != nil {
			c.Fatalf("connect, as the second: %v", err)
		}
		b.send(transport.SendRequest{Op: transport.OpSend}) // the first may not know yet
		if err := <-errs; err != nil {
			c.Fatalf("connect, as the first: %v", err)
		}
		a.awaitOK(id, 0)
	}
}

func carrierConnectTwice(c *carrierTest) {
	c.start(2)
	a, b := c.pair(0, 1)
	other := c.endpoint(1, c.spec())
	for _, to := range []*end{b, other} {
		if err := a.ep.Connect(to.ep.Local(), soon()); !errors.Is(err, transport.ErrState) {
			c.Errorf("connect of an endpoint that is connected: %v", err)
		}
	}
	id := b.recv(nil)
	a.send(transport.SendRequest{Op: transport.OpSend})
	b.awaitOK(id, 0) // as if nothing had been
}

func carrierConnectBadAddress(c *carrierTest) {
	c.start(2)
	good := c.endpoint(1, c.spec()).ep.Local()
	for name, address := range map[string][]byte{
		"none":      nil,
		"cut":       good[:len(good)-1],
		"longer":    append(bytes.Clone(good), 0),
		"noise":     bytes.Repeat([]byte{0xff}, len(good)),
		"zeros":     make([]byte, len(good)),
		"very long": make([]byte, transport.MaxAddressBytes+1),
	} {
		e := c.endpoint(0, c.spec())
		id := e.recv(nil)
		if err := e.ep.Connect(address, soon()); err == nil {
			c.Errorf("connected to an address that is %s", name)
		}
		if s := e.ep.State(); s != transport.StateError {
			c.Errorf("address %s: state %d", name, s)
		}
		if done := e.await(id); done.Status != transport.StatusFlushed {
			c.Errorf("address %s: a receive ends as %+v", name, done)
		}
		if err := e.ep.Connect(good, soon()); !errors.Is(err, transport.ErrState) {
			c.Errorf("connect after a failed one: %v", err)
		}
	}
}

func carrierConnectLate(c *carrierTest) {
	c.start(2)
	a, b := c.endpoint(0, c.spec()), c.endpoint(1, c.spec())
	if err := a.ep.Connect(b.ep.Local(), time.Now().Add(-time.Second)); err == nil {
		c.Error("connected after the deadline")
	}
	if s := a.ep.State(); s != transport.StateError {
		c.Errorf("state %d after a deadline", s)
	}
}

// carrierConnectUnresponsivePeer connects to an endpoint that never does its part: it
// shows at once, or as soon as something is sent.
func carrierConnectUnresponsivePeer(c *carrierTest) {
	c.start(2)
	a, b := c.endpoint(0, c.spec()), c.endpoint(1, c.spec())
	b.recv(nil)
	if err := a.ep.Connect(b.ep.Local(), soon()); err == nil {
		id := a.send(transport.SendRequest{Op: transport.OpSend})
		if done := a.await(id); done.Status != transport.StatusUnreachable {
			c.Errorf("sent to a peer that has not connected: %+v", done)
		}
	}
	if s := a.ep.State(); s != transport.StateError {
		c.Errorf("state %d: the peer never answered", s)
	}
	if b.outstanding() != 1 {
		c.Error("the unresponsive peer has received something")
	}
}
