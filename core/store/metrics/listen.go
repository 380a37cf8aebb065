package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// MaxConns is how many connections a listener has at a time. One more is closed at once.
const MaxConns = 16

// ContentType is that of the text.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

const (
	readTime  = 5 * time.Second  // for a request
	writeTime = 10 * time.Second // for its answer
	idleTime  = time.Minute      // between requests of a connection
	endTime   = time.Second      // that Close leaves answers
	mostHead  = 8 << 10          // bytes of a request
)

// Listener serves GET /metrics over HTTP. It asks for no key: whoever reaches the address sees the numbers and the names of
// namespaces. Safe for concurrent use.
type Listener struct {
	listener net.Listener
	http     http.Server
	ended    chan struct{}
	once     sync.Once
	one      sync.Mutex // of several that ask, one is answered at a time
}

// Listen begins to serve at "host:port" what text returns. report (may be nil) is told if serving ends by itself.
func Listen(addr string, text func() []byte, report func(line string)) (*Listener, error) {
	to, err := sys.ListenNet(addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	l := &Listener{listener: to, ended: make(chan struct{})}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { l.answer(w, text) })
	l.http = http.Server{
		Handler: routes, ReadTimeout: readTime, ReadHeaderTimeout: readTime, WriteTimeout: writeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: mostHead, ErrorLog: log.New(io.Discard, "", 0),
	}
	safego.Go("store: metrics", func() {
		defer close(l.ended)
		err := l.http.Serve(&bounded{Listener: to, free: make(chan struct{}, MaxConns)})
		if report != nil && !errors.Is(err, http.ErrServerClosed) {
			report(fmt.Sprintf("metrics are served no more: %v", err))
		}
	}, func(err error) {
		if report != nil {
			report(err.Error())
		}
	})
	return l, nil
}

func (l *Listener) answer(w http.ResponseWriter, text func() []byte) {
	w.Header().Set("Content-Type", ContentType)
	_, _ = w.Write(l.now(text))
}

func (l *Listener) now(text func() []byte) []byte {
	l.one.Lock()
	defer l.one.Unlock()
	return text()
}

// Addr is where it listens.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Close ends all connections, after a second those that are being answered, too. Idempotent.
func (l *Listener) Close() {
	l.once.Do(func() {
		until, cancel := context.WithTimeout(context.Background(), endTime)
		defer cancel()
		_ = l.http.Shutdown(until)
		_ = l.http.Close()
	})
	<-l.ended
}

// bounded is a listener that has a bounded number of connections.
type bounded struct {
	net.Listener
	free chan struct{} // has one for each connection
}

// Accept takes a connection; it closes those that are too many.
func (b *bounded) Accept() (net.Conn, error) {
	for {
		c, err := b.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case b.free <- struct{}{}:
			return &counted{Conn: c, free: b.free}, nil
		default:
			_ = c.Close()
		}
	}
}

type counted struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

// Close closes the connection and gives its place back.
func (c *counted) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.free })
	return err
}
