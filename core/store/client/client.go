// Package client is the client of the block store. What is asked for is submitted and
// completes later; the synchronous calls stand on that. A client has a connection to each of
// its servers, over which keys are spread. A server that is dead, hung or full makes misses,
// never errors, and costs one deadline once: then its share is a miss at once, until a probe
// in the background finds it back.
package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/pool"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// Sentinels.
var (
	// ErrClosed means that the client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrWouldBlock means that as many requests run, or wait to be drained, as may. Nothing has happened.
	ErrWouldBlock = errors.New("as many requests run, or wait to be drained, as may")
	// ErrArgument is wrapped by errors that name an argument, what was given and what is allowed.
	ErrArgument = errors.New("bad argument")
	// ErrRefused means that a server does not take this client: another key, clock or format.
	ErrRefused = errors.New("the server refused this client")
	// ErrDeadline means that what was waited for has not happened in time. It goes on.
	ErrDeadline = errors.New("the deadline came first")
)

// Config says what Open opens. What is 0 has the value in its comment.
type Config struct {
	Servers    []string // host:port, each once
	Namespace  message.Namespace
	Keys       *wire.Keyring
	Protection wire.Protection   // digest
	Timeout    time.Duration     // 250 ms without progress
	Connect    time.Duration     // 2 s for a connection
	ProbeMin   time.Duration     // 500 ms between the first probes of a server that is gone
	ProbeMax   time.Duration     // 5 s between later ones
	Requests   int               // 1024 at a time, and submitted ones that were not drained
	Carrier    Carrier           // what brings blocks: CarrierAuto
	Warn       func(line string) // told once of a server that sends blocks by TCP though they could come better, or refuses for want of a right
	Now        func() time.Time  // of handshakes; nil: time.Now

	// Dial makes a connection; nil: TCP.
	Dial func(ctx context.Context, addr string) (Conn, error)
}

func (c *Config) fill() {
	for _, d := range []struct {
		at    *time.Duration
		value time.Duration
	}{
		{&c.Timeout, 250 * time.Millisecond},
		{&c.Connect, 2 * time.Second},
		{&c.ProbeMin, 500 * time.Millisecond},
		{&c.ProbeMax, 5 * time.Second},
	} {
		if *d.at == 0 {
			*d.at = d.value
		}
	}
	if c.Requests == 0 {
		c.Requests = 1024
	}
	if c.Protection == 0 {
		c.Protection = wire.ProtectDigest
	}
	if c.Dial == nil {
		c.Dial = dialTCP
	}
	if c.Warn == nil {
		c.Warn = func(string) {}
	}
}

func (c *Config) check() error {
	sorted := slices.Sorted(slices.Values(c.Servers))
	switch {
	case len(c.Servers) == 0 || len(c.Servers) > maxServers:
		return fmt.Errorf("%w: %d servers given; allowed: 1 to %d", ErrArgument, len(c.Servers), maxServers)
	case len(slices.Compact(sorted)) < len(c.Servers):
		return fmt.Errorf("%w: a server is given twice in %q", ErrArgument, c.Servers)
	case c.Carrier > CarrierTCP:
		return fmt.Errorf("%w: carrier %d given; allowed: CarrierAuto to CarrierTCP", ErrArgument, c.Carrier)
	case c.Keys == nil:
		return fmt.Errorf("%w: no key given; there is no mode without", ErrArgument)
	case c.Namespace.Bytes() > message.MaxNamespaceBytes:
		return fmt.Errorf("%w: the namespace has %d bytes; allowed: %d", ErrArgument, c.Namespace.Bytes(), message.MaxNamespaceBytes)
	case c.Timeout < 0, c.Connect < 0, c.ProbeMin < 0, c.ProbeMax < 0, c.Requests < 0:
		return fmt.Errorf("%w: a time or a bound is negative; allowed: 0, the default, and more", ErrArgument)
	}
	return nil
}

const maxServers = 256

// Client is safe for concurrent use.
type Client struct {
	cfg     Config
	digest  [32]byte
	peers   []*peer
	places  *pool.Pool[struct{}] // for requests
	event   *sys.FD
	stop    *sys.FD // can be read once the client is being closed
	counts  Counters
	ended   sync.WaitGroup
	closing chan struct{}
	cancel  context.CancelFunc
	ctx     context.Context
	wakeup  chan struct{} // for the watch
	looks   atomic.Int64  // when it looks next, on the clock of stream.Now

	mu     sync.Mutex
	closed bool
	nextID uint64
	calls  map[uint64]*call // submitted, not drained yet
	done   []*call          // in the order of their end
}

// Open connects to all servers. One that cannot be reached is no error: what is refused is.
func Open(cfg Config) (*Client, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.fill()
	places, err := pool.New(pool.Config[struct{}]{Cap: cfg.Requests, Make: func() (s struct{}, err error) { return s, nil }})
	if err != nil {
		return nil, err
	}
	event, err := sys.NewEvent()
	if err != nil {
		return nil, err
	}
	stop, err := sys.NewEvent()
	if err != nil {
		return nil, errors.Join(err, event.Close())
	}
	c := &Client{
		cfg: cfg, digest: cfg.Namespace.Digest(), places: places, event: event, stop: stop,
		closing: make(chan struct{}), wakeup: make(chan struct{}, 1), calls: map[uint64]*call{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	for i, name := range cfg.Servers {
		c.peers = append(c.peers, newPeer(c, i, name))
	}
	for _, p := range c.peers {
		c.start("store: connection", p.keep)
	}
	c.start("store: deadlines", c.watch)
	if err := c.firsts(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// firsts waits until every server was tried once.
func (c *Client) firsts() error {
	for _, p := range c.peers {
		if err := <-p.first; errors.Is(err, ErrRefused) {
			return err
		}
	}
	return nil
}

// start runs a goroutine that Close waits for. The caller knows that Close has not begun to wait.
func (c *Client) start(name string, f func()) {
	c.ended.Add(1)
	safego.Go(name, func() {
		defer c.ended.Done()
		f()
	}, nil)
}

// Close ends all connections. What runs completes as misses. Idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	close(c.closing)
	err := sys.Signal(c.stop)
	c.cancel()
	for _, p := range c.peers {
		p.close()
	}
	c.ended.Wait()
	c.places.Close()
	return errors.Join(err, c.stop.Close(), c.event.Close())
}

func (c *Client) isClosed() bool {
	select {
	case <-c.closing:
		return true
	default:
		return false
	}
}

// EventFD is a descriptor that is readable while there are completions to drain. It is the
// client's.
func (c *Client) EventFD() int { return c.event.Raw() }
