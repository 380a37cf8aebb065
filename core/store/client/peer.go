package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
	"github.com/moewire/moewire/core/wire"
)

// Conn is a connection to a server.
type Conn = net.Conn

func dialTCP(ctx context.Context, addr string) (Conn, error) {
	nc, err := sys.DialNet(ctx, addr)
	if err != nil {
		return nil, err
	}
	return nc.Socket()
}

// peer is one server. Its breaker is closed while it has a link; else what is asked of it is
// a miss at once.
type peer struct {
	client *Client
	number int
	name   string
	first  chan error // how the first try ended
	// why blocks come by TCP for as long as the client lives
	latched uatomic.Error
	said    atomic.Bool // that they come by TCP for a while
	denied  atomic.Bool // and a warning said so
	// tooLarge has a bit for each power of two of bytes of which a warning has said that no segment holds such a block
	tooLarge atomic.Uint32

	mu      sync.Mutex
	link    *link
	left    *link // one before it that has not ended
	lastErr error
	closed  bool
}

func newPeer(c *Client, number int, name string) *peer {
	return &peer{client: c, number: number, name: name, first: make(chan error, 1)}
}

// keep keeps a link to the server: the one probe in the background.
func (p *peer) keep() {
	cfg := &p.client.cfg
	for wait, first := cfg.ProbeMin, true; !p.client.isClosed(); first = false {
		l, err := p.connect()
		p.set(l, err)
		if first {
			p.first <- err
		}
		if err == nil {
			wait = p.serve(l)
		} else {
			p.client.counts.ProbesFailed.Add(1)
		}
		if !p.sleep(wait) {
			return
		}
		wait = min(max(2*wait, cfg.ProbeMin), cfg.ProbeMax)
	}
}

// serve runs a link to its end, and says when to try again: at once if it was well for a
// while.
func (p *peer) serve(l *link) time.Duration {
	began := time.Now()
	l.run()
	if m := p.after(l); m != nil {
		<-m.ran
		l = m
	}
	p.set(nil, l.cause())
	if time.Since(began) > p.client.cfg.ProbeMax {
		return 0
	}
	return p.client.cfg.ProbeMin
}

// after is the link that runs in the place of one that has ended, if there is one.
func (p *peer) after(l *link) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = nil
	return l.successor
}

func (p *peer) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.client.closing:
		return false
	}
}

// set is the breaker.
func (p *peer) set(l *link, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l == nil && p.link != nil {
		p.client.counts.Broken.Add(1)
	}
	p.link, p.lastErr = l, err
	if p.closed && l != nil {
		l.fail(ErrClosed)
	}
}

func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, l := range []*link{p.link, p.left} {
		if l != nil {
			l.fail(ErrClosed)
		}
	}
}

// submit hands a part to the link, or makes it a miss.
func (p *peer) submit(t *part) {
	if !p.ask(t) {
		p.client.counts.Unreachable.Add(uint64(len(t.keys)))
		t.complete()
	}
}

// ask hands a part to the link; false: there is none.
func (p *peer) ask(t *part) bool {
	p.mu.Lock()
	l := p.link
	p.mu.Unlock()
	return l != nil && l.ask(t)
}

// live is the link; nil and why, where there is none. One that has ended is none, though keep may not have noticed yet: a caller
// that has seen a part of it end must not find its server up.
func (p *peer) live() (*link, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return nil, p.lastErr
	}
	if err := p.link.cause(); err != nil {
		return nil, err
	}
	return p.link, nil
}

func (p *peer) server() string { return p.name }

// A server refuses another key by saying nothing, as one does that ends. So a silent end is tried again, with
// the keys that the source has by then: they may have been exchanged.
const (
	silentTries = 3
	silentPause = 50 * time.Millisecond
)

// connect makes a link. ErrRefused: the server is there and does not want this client.
func (p *peer) connect() (l *link, err error) {
	deadline := time.Now().Add(p.client.cfg.Connect)
	ctx, cancel := context.WithDeadline(p.client.ctx, deadline)
	defer cancel()
	var reread error
	for try := 1; ; try++ {
		l, err = p.try(ctx, deadline)
		if !errors.Is(err, stream.ErrSilent) || try == silentTries || !p.sleep(silentPause) {
			break
		}
		reread = p.client.cfg.Keys.Reload() // on an error the keys stay what they were
	}
	if errors.Is(err, errDenied) {
		reread = p.client.cfg.Keys.Reload() // for the next time
		p.deny(err.Error())
	}
	if err != nil && ctx.Err() == nil {
		err = p.refusal(errors.Join(err, reread))
	}
	return l, err
}

// try makes one connection and, over it, a link.
func (p *peer) try(ctx context.Context, deadline time.Time) (*link, error) {
	cfg := &p.client.cfg
	nc, err := cfg.Dial(ctx, p.name)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	l, err := p.greet(nc, deadline)
	if err == nil && !stop() {
		l.closeView()
		err = errors.Join(context.Cause(ctx), l.nc.Close())
	}
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return l, nil
}

func (p *peer) greet(nc net.Conn, deadline time.Time) (*link, error) {
	l, err := p.session(nc, deadline)
	if err == nil {
		err = l.share(deadline)
	}
	if err != nil {
		return nil, err
	}
	l = l.nearer(deadline)
	if err := l.nc.SetDeadline(time.Time{}); err != nil {
		l.closeView()
		return nil, errors.Join(err, l.nc.Close())
	}
	return l, nil
}

// session begins a session over a connection, and opens the namespace.
func (p *peer) session(nc net.Conn, deadline time.Time) (*link, error) {
	cfg := &p.client.cfg
	session, err := stream.Handshake(nc, wire.RoleClient, wire.Config{
		Keys: cfg.Keys, Protection: cfg.Protection, Ordered: true, MaxPayloadBytes: message.MaxPayloadBytes,
		Blob: message.Hello(), Counters: &p.client.counts.Frames, Now: cfg.Now,
	}, deadline)
	if err != nil {
		return nil, err
	}
	l := newLink(p, nc, session)
	if err := nc.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return l, l.open()
}

// deny says once that the server refuses something for want of a right: it must not look like an empty store.
func (p *peer) deny(what string) {
	if p.denied.CompareAndSwap(false, true) {
		p.client.cfg.Warn(fmt.Sprintf("%s: %s; what the key may not do does not happen, and is counted", p.name, what))
	}
}

// refusal tells a server that does not want this client from one that is gone.
func (p *peer) refusal(err error) error {
	var refused *wire.RefusedError
	switch {
	case errors.Is(err, stream.ErrSilent), errors.Is(err, errDenied), errors.As(err, &refused) && refused.Reason != wire.ErrBusy:
		p.client.counts.Refused.Add(1)
		return fmt.Errorf("%w: %s: %w", ErrRefused, p.name, err)
	}
	return err
}
