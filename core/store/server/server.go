// Package server is the server of the block store: it takes connections, and does for each
// client what its messages ask of the engine. A connection has a goroutine that reads and
// does, and one that writes; a request has a context of a bounded pool. So what a client can
// cost is bounded, and one that does not read costs its own connection only.
package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/wire"
)

// Config says what a server serves. What is 0 has the value in its comment.
type Config struct {
	Store      Store
	Storage    uint8 // what clients are told: 1 memory, 2 file, 3 direct
	Arena      Arena // where blocks lie, for clients of this host; nil: they get them over their connection, too
	Addr       string
	Keys       *wire.Keyring
	Protection wire.Protection // digest
	NoSingles  bool            // no single signed requests, only sessions

	MaxClients int           // 256 connections
	MaxPending int           // 64 connections of which nothing is known yet
	Contexts   int           // 32 requests of one connection at a time
	Handshake  time.Duration // 2 s, until a connection must have authenticated
	Idle       time.Duration // 10 s without a byte, in a message or while the client does not read
	Total      time.Duration // 60 s for a message, or a flush
	Hold       time.Duration // 30 s that a handle lives unless its client wants less
	End        time.Duration // 2 s that Close waits for calls of the store
	Stats      func() any    // of the engine, for clients that ask; may be nil
	Log        func(line string)
	Now        func() time.Time // of handshakes; nil: time.Now
}

func (c *Config) fill() {
	for _, d := range []struct {
		at    *int
		value int
	}{{&c.MaxClients, 256}, {&c.MaxPending, 64}, {&c.Contexts, 32}} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{
		{&c.Handshake, 2 * time.Second},
		{&c.Idle, 10 * time.Second},
		{&c.Total, time.Minute},
		{&c.Hold, 30 * time.Second},
		{&c.End, 2 * time.Second},
	} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if c.Protection == 0 {
		c.Protection = wire.ProtectDigest
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
}

func (c *Config) check() error {
	switch {
	case c.Store == nil:
		return errors.New("server: Store is nil")
	case c.Keys == nil:
		return errors.New("server: Keys is nil; there is no mode without keys")
	case c.MaxClients < 0, c.MaxPending < 0, c.Contexts < 0:
		return errors.New("server: a bound is negative; allowed: 0, the default, and more")
	case c.Handshake < 0, c.Idle < 0, c.Total < 0, c.Hold < 0, c.End < 0:
		return errors.New("server: a time is negative; allowed: 0, the default, and more")
	}
	return nil
}

// Server is a listener with its connections. Safe for concurrent use.
type Server struct {
	cfg      Config
	wire     wire.Config
	listener net.Listener
	boot     [16]byte
	started  time.Time
	counters Counters
	refusals wire.Counters
	signed   *wire.Singles // nil: none
	ended    sync.WaitGroup
	// unfinished is how many bytes the blocks have that come in several messages.
	unfinished atomic.Int64
	over       chan struct{} // closed when nothing of the server runs any more

	reloading sync.Mutex    // one Reload at a time
	requoted  chan struct{} // quotas were set since blocks were evicted for them

	refused, crowded, starved, lost, unshared rare // events to be logged

	mu      sync.Mutex
	pending accept.Pending[net.Conn]
	conns   map[*conn]struct{}
	singles map[*single]struct{}
	closing bool
	closed  chan struct{} // nothing new is taken
	cut     chan struct{} // and nothing is waited for
}

// Listen begins to serve. The store stays the caller's: close it after the server.
func Listen(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.fill()
	s := &Server{
		cfg: cfg, started: time.Now(), conns: map[*conn]struct{}{}, singles: map[*single]struct{}{},
		closed: make(chan struct{}), cut: make(chan struct{}), over: make(chan struct{}),
		requoted: make(chan struct{}, 1),
	}
	if err := s.prepare(); err != nil {
		return nil, err
	}
	listener, err := sys.ListenNet(cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.listener = listener
	s.pending = accept.NewPending(cfg.MaxPending, cfg.Handshake, func(c net.Conn) { _ = c.Close() })
	s.start("store: listener", s.take)
	s.start("store: handles", s.sweep)
	s.start("store: quotas", s.evictOverQuotas)
	s.awaitEnd()
	return s, nil
}

func (s *Server) prepare() (err error) {
	guard, err := wire.NewGuard(0)
	if err != nil {
		return err
	}
	s.wire = wire.Config{
		Keys: s.cfg.Keys, Protection: s.cfg.Protection, Ordered: true, MaxPayloadBytes: message.MaxPayloadBytes,
		Guard: guard, Counters: &s.refusals, Now: s.cfg.Now, Blob: message.Hello(), Accept: s.accept,
	}
	_, _ = rand.Read(s.boot[:])
	s.cfg.Store.SetQuotas(rights.Quotas(s.cfg.Keys))
	s.requoted <- struct{}{}
	return s.prepareSingles()
}

// accept looks at the hello of a client that has the key.
func (s *Server) accept(peer wire.Peer) ([]byte, error) {
	if !message.IsHello(peer.Blob) {
		s.counters.OtherVersion.Add(1)
		return nil, fmt.Errorf("the client speaks another format; here it is %d", message.Version)
	}
	return message.Hello(), nil
}

// start runs a goroutine that Close waits for.
func (s *Server) start(name string, f func()) {
	s.ended.Add(1)
	safego.Go(name, func() {
		defer s.ended.Done()
		f()
	}, func(err error) { s.cfg.Log(err.Error()) })
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// take takes connections. A want of descriptors is waited for.
func (s *Server) take() {
	for {
		nc, err := s.listener.Accept()
		if err == nil {
			s.admit(nc)
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.counters.AcceptFailed.Add(1)
		s.logRare(&s.starved, fmt.Sprintf("connections cannot be taken: %v", err))
		select {
		case <-s.closed:
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *Server) admit(nc net.Conn) {
	s.counters.Accepted.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		discard(nc)
		return
	}
	if s.pending.Add(nc) {
		s.counters.Crowded.Add(1)
	}
	s.start("store: connection", func() { s.welcome(nc) })
}

// welcome makes a session of a connection, and serves it until its end.
func (s *Server) welcome(nc net.Conn) {
	defer discard(nc)
	deadline := time.Now().Add(s.cfg.Handshake)
	first, err := stream.First(nc, wire.SinglePrefixBytes, deadline)
	if err == nil && s.signed != nil && wire.IsSingle(first) {
		s.serveSingles(nc, first, deadline)
		return
	}
	unwanted := isLocal(nc) && errors.Is(err, io.EOF) // before its first byte: its client has no use for it
	reading := s.cfg.Keys.Reading()
	session, err := stream.HandshakeAfter(first, nc, wire.RoleServer, s.wire, deadline)
	s.mu.Lock()
	there := s.pending.Remove(nc)
	full := len(s.conns) >= s.cfg.MaxClients
	var c *conn
	if err == nil && !full && !s.closing {
		c, err = newConn(s, nc, session, reading)
	}
	if c == nil {
		s.mu.Unlock()
		if there && !unwanted { // else it has made room for another one, and was counted
			s.reject(nc, err, full)
		}
		return
	}
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	defer s.forget(c)
	c.serve()
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *Server) reject(nc net.Conn, err error, full bool) {
	switch {
	case err != nil:
		s.counters.Unauthenticated.Add(1)
		s.logRare(&s.refused, fmt.Sprintf("%v was refused: %v", nc.RemoteAddr(), err))
	case full:
		s.counters.TooManyClients.Add(1)
		s.logRare(&s.crowded, fmt.Sprintf("%v was refused: there are %d clients already", nc.RemoteAddr(), s.cfg.MaxClients))
	}
}

// sweep ends handles that have expired, and logs what goes wrong again and again.
func (s *Server) sweep() {
	states := make([]spell, len(spells))
	tick := time.NewTicker(min(s.cfg.Hold/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			return
		case now := <-tick.C:
			for _, c := range s.all() {
				c.handles.expire(now, &s.counters)
			}
			s.revoke()
			s.counters.watch(now, states, s.cfg.Log)
		}
	}
}

// running is how many requests run.
func (s *Server) running() (n int) {
	for _, c := range s.all() {
		n += c.contexts.Stats().Leased
	}
	return n
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}
