package metrics

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// MaxConns is how many connections a listener has at a time. One more is closed at once.
const MaxConns = 16

const (
	readTime  = 5 * time.Second  // for a request
	writeTime = 10 * time.Second // for its answer
	endTime   = time.Second      // that Close leaves answers
	pauseTime = 100 * time.Millisecond
)

// Listener serves GET /metrics over HTTP/1.1, one request for each connection. It asks for no key: a client that reaches
// the address sees the numbers and the names of namespaces. Safe for concurrent use. It is not
// made of net/http, which would be a quarter of the library that programs load.
type Listener struct {
	listener net.Listener
	text     func() []byte
	report   func(line string)
	ended    sync.WaitGroup
	one      sync.Mutex // of several that ask, one is answered at a time

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Listen begins to serve at "host:port" what text returns. report (may be nil) is told of connections that the system does
// not give, and of defects.
func Listen(addr string, text func() []byte, report func(line string)) (*Listener, error) {
	to, err := sys.ListenNet(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	if report == nil {
		report = func(string) {}
	}
	l := &Listener{listener: to, text: text, report: report, conns: map[net.Conn]struct{}{}}
	l.start(l.take)
	return l, nil
}

func (l *Listener) start(f func()) {
	l.ended.Add(1)
	safego.Go("store: metrics", func() {
		defer l.ended.Done()
		f()
	}, func(err error) { l.report(err.Error()) })
}

// take takes connections. A want of descriptors is told once, and waited for.
func (l *Listener) take() {
	for said := false; ; {
		c, err := l.listener.Accept()
		switch {
		case err == nil:
			said = false
			l.admit(c)
			continue
		case errors.Is(err, net.ErrClosed):
			return
		case !said:
			l.report(fmt.Sprintf("metrics: connections cannot be taken: %v", err))
		}
		said = true
		time.Sleep(pauseTime)
	}
}

// admit answers a connection, or closes it if there are too many.
func (l *Listener) admit(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.conns) == MaxConns {
		_ = c.Close()
		return
	}
	now := time.Now()
	_ = c.SetReadDeadline(now.Add(readTime))
	_ = c.SetWriteDeadline(now.Add(readTime + writeTime))
	l.conns[c] = struct{}{}
	l.start(func() {
		defer l.leave(c)
		l.answer(c)
	})
}

func (l *Listener) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = c.Close()
	delete(l.conns, c)
}

func (l *Listener) now() []byte {
	l.one.Lock()
	defer l.one.Unlock()
	return l.text()
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Close ends all connections, those that are being answered after a second. Idempotent.
func (l *Listener) Close() {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		_ = l.listener.Close()
		for c := range l.conns {
			_ = c.SetReadDeadline(time.Unix(1, 0))
			_ = c.SetWriteDeadline(time.Now().Add(endTime))
		}
	}
	l.mu.Unlock()
	l.ended.Wait()
}
