package shm

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
)

// foreignConn is what one says at a rendezvous's socket, and why it is turned away.
// Nothing to say: it is only slow, and there is nothing to refuse.
type foreignConn struct {
	name  string
	bytes []byte
	why   string
}

// foreignConns of rank 0's rendezvous with rank 1, which has not come.
func foreignConns(host, awaited *Listener) []foreignConn {
	genuine := message{kind: kindHello, rank: 1, to: host.info.Nonce, from: awaited.info.Nonce}
	change := func(f func(m *message)) []byte {
		m := genuine
		f(&m)
		return m.marshal()
	}
	version := genuine.marshal()
	version[4]++
	whole := genuine.marshal()
	return []foreignConn{
		{"slow", nil, ""},
		{"truncated", whole[:messageBytes-1], "not a moewire message"},
		{"huge", make([]byte, 100_000), "too large"},
		{"another version", version, "another version"},
		{"wrong nonce of the receiver", change(func(m *message) { m.to[0] ^= 1 }), "another rank or nonce"},
		{"wrong nonce of the sender", change(func(m *message) { m.from[0] ^= 1 }), "another rank or nonce"},
		{"a rank that there is not", change(func(m *message) { m.rank = 1 << 30 }), "not awaited"},
		{"the host's own rank", change(func(m *message) { m.rank = 0 }), "not awaited"},
		{"a hello without memory", whole, "with 0 descriptors"},
	}
}

func (s *foreignConn) visit(t *testing.T, host *Listener) *sys.FD {
	t.Helper()
	conn, err := sys.DialAbstract(host.info.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.CloseAll(conn) })
	if s.bytes != nil {
		if err := sys.Send(conn, s.bytes); err != nil {
			t.Fatal(err)
		}
	}
	return conn
}

// TestForeignConnsAreRefusedByReason: a rendezvous that ends for want of a rank says
// why it turned a foreign connection away, and ends in time whatever that does.
func TestForeignConnsAreRefusedByReason(t *testing.T) {
	listeners, _ := openAll(t, 2, 64)
	for i := range foreignConns(listeners[0], listeners[1]) {
		listeners, all := openAll(t, 2, 64)
		s := foreignConns(listeners[0], listeners[1])[i]
		s.visit(t, listeners[0])
		within(t, 5*time.Second, func() {
			_, err := listeners[0].Connect(all, 100*time.Millisecond)
			refused := err != nil && strings.Contains(err.Error(), "a connection was refused")
			if err == nil || refused != (s.why != "") || !strings.Contains(err.Error(), s.why) {
				t.Errorf("%s: %v, want %q", s.name, err, s.why)
			}
		})
	}
}

// TestPeersMeetAmongForeignConns: with all of them there first, the genuine rank
// gets in, both have the whole group, and no foreign connection stays.
func TestPeersMeetAmongForeignConns(t *testing.T) {
	listeners, all := openAll(t, 2, 64)
	var conns []*sys.FD
	for _, s := range foreignConns(listeners[0], listeners[1]) {
		conns = append(conns, s.visit(t, listeners[0]))
	}
	within(t, 5*time.Second, func() {
		domains, errs := connectAll(listeners, all, 20*time.Second)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, d := range domains {
			if present := d.(*hostDomain).Present(); present != rankset.Of(0, 1) {
				t.Errorf("present: %v", present)
			}
			defer d.Close()
		}
	})
	for i, conn := range conns {
		if _, err := sys.WaitReadable([]*sys.FD{conn}, time.Now().Add(5*time.Second)); err != nil {
			t.Errorf("foreign connection %d: its connection stays: %v", i, err)
		}
	}
}
