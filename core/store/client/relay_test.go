package client

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moewire/moewire/core/store/server"
)

// relay is a cable to a server, which can be stopped, and flips bits if told to.
type relay struct {
	to      string
	stopped atomic.Bool
	replies way
	asked   way
	mask    atomic.Uint32 // which bits are flipped; 0: one
	mu      sync.Mutex
	record  bytes.Buffer // what clients have sent
	conns   []net.Conn
}

// way is one direction of the last connection.
type way struct {
	flip atomic.Int64 // the byte of that number; 0: none
	sent atomic.Int64 // bytes that went this way
}

// dial is Config.Dial.
func (r *relay) dial(ctx context.Context, _ string) (Conn, error) {
	serverEnd, err := dialTCP(ctx, r.to)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	clientEnd, err := dialTCP(ctx, l.Addr().String())
	if err != nil {
		return nil, err
	}
	mid, err := l.Accept()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.conns = append(r.conns, mid, serverEnd)
	r.mu.Unlock()
	go r.carry(mid, serverEnd, true)
	go r.carry(serverEnd, mid, false)
	return clientEnd, nil
}

func (r *relay) carry(from, to net.Conn, sent bool) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 64<<10)
	total, w := int64(0), &r.replies
	if sent {
		w = &r.asked
	}
	for {
		n, err := from.Read(b)
		for r.stopped.Load() {
			time.Sleep(time.Millisecond)
		}
		if err != nil {
			return
		}
		if sent {
			r.mu.Lock()
			r.record.Write(b[:n])
			r.mu.Unlock()
		}
		if at := w.flip.Load() - total; at > 0 && at <= int64(n) {
			b[at-1] ^= byte(cmp.Or(r.mask.Load(), 4))
		}
		total += int64(n)
		w.sent.Store(total)
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}

func (r *relay) close() {
	r.stopped.Store(false)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		_ = c.Close()
	}
}

// relayed makes a client behind a cable. What changes its configuration comes last.
func relayed(t *testing.T, s *server.Server, timeout time.Duration, change ...func(*Config)) (*Client, *relay) {
	t.Helper()
	r := &relay{to: s.Addr().String()}
	relaying := func(c *Config) {
		c.Dial, c.Timeout, c.ProbeMin, c.ProbeMax, c.Connect = r.dial, timeout, 20*time.Millisecond, 50*time.Millisecond, testTimeout
	}
	c := dial(t, one(s), append([]func(*Config){relaying}, change...)...)
	t.Cleanup(r.close)
	return c, r
}
