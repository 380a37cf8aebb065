package link

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// Poller is the one goroutine that polls a carrier, for all links over it.
type Poller struct {
	carrier transport.Transport
	ring    func()

	mu    sync.Mutex         // guards changes of links, and what follows
	all   map[*Link]struct{} // also those that are between two endpoints
	dead  error              // why polling has ended
	ill   error              // how the device failed first, if it ever did
	links atomic.Pointer[map[transport.EndpointID]*Link]
	stop  atomic.Bool
	done  chan struct{}
	end   sync.Once
	err   error

	rounds atomic.Uint64 // what was polled in those before was looked at
}

// waitAtMost bounds a wait of the goroutine; it is woken for everything.
const waitAtMost = time.Second

// Kinds of work requests, in the upper byte of their ids.
const (
	idMessage = iota + 1
	idGrant
	idReceive
	idPathProbe
)

func requestID(kind, number uint64) uint64 { return kind<<56 | number }

// NewPoller starts polling a carrier, which it owns from then on. ring is
// called on the goroutine whenever a message has come or room is free, or a
// link has failed.
func NewPoller(carrier transport.Transport, ring func()) *Poller {
	p := &Poller{carrier: carrier, ring: ring, all: map[*Link]struct{}{}, done: make(chan struct{})}
	p.links.Store(&map[transport.EndpointID]*Link{})
	safego.Go("link poller", func() { p.run(); close(p.done) }, func(err error) {
		defer close(p.done) // not before: Close lets go of what failAll uses
		p.failAll(err)
	})
	return p
}

// Carrier is what the poller polls.
func (p *Poller) Carrier() transport.Transport { return p.carrier }

// Close ends the goroutine and closes the carrier; every link must be closed.
// Idempotent.
func (p *Poller) Close() error {
	p.end.Do(func() {
		p.stop.Store(true)
		p.carrier.Wake()
		<-p.done
		p.err = p.carrier.Close()
	})
	return p.err
}

// add is refused when polling has ended: a link would wait for ever. From then on, until
// leave, the link is told of what befalls the device.
func (p *Poller) add(id transport.EndpointID, l *Link) error {
	return p.change(func(m map[transport.EndpointID]*Link) { m[id], p.all[l] = l, struct{}{} })
}

// leave takes a link out, with its endpoint.
func (p *Poller) leave(id transport.EndpointID, l *Link) {
	p.remove(id, l)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.all, l)
}

// remove takes an endpoint out, unless another link has its number by now.
func (p *Poller) remove(id transport.EndpointID, l *Link) {
	_ = p.change(func(m map[transport.EndpointID]*Link) {
		if m[id] == l {
			delete(m, id)
		}
	})
}

func (p *Poller) change(f func(map[transport.EndpointID]*Link)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := maps.Clone(*p.links.Load())
	f(m)
	p.links.Store(&m)
	return p.dead
}

func (p *Poller) run() {
	var (
		done   [64]transport.Completion
		events [16]transport.Event
	)
	for ; !p.stop.Load(); p.rounds.Add(1) {
		n, err := p.carrier.Poll(done[:])
		if err != nil {
			p.failAll(fmt.Errorf("polling %s: %w", p.carrier.Name(), err))
			return
		}
		news := false
		for i := range done[:n] {
			news = p.serve(&done[i]) || news
		}
		for _, e := range events[:p.carrier.PollEvents(events[:])] {
			news = p.notice(&e) || news
		}
		switch {
		case news:
			p.ring()
		case n == 0:
			if err := p.carrier.Wait(waitAtMost); err != nil {
				p.failAll(fmt.Errorf("waiting for %s: %w", p.carrier.Name(), err))
				return
			}
		}
	}
}

// failAll ends all links, and those to come; nothing of them completes any
// more.
func (p *Poller) failAll(cause error) {
	p.mu.Lock()
	p.dead = cause
	p.mu.Unlock()
	p.fell(cause)
	p.ring()
}

// fell ends all links, and remembers the first failure of the device.
func (p *Poller) fell(cause error) {
	p.mu.Lock()
	if p.ill == nil {
		p.ill = cause
	}
	all := slices.Collect(maps.Keys(p.all))
	p.mu.Unlock()
	for _, l := range all {
		l.deviceFell(p, cause)
	}
}

// Failed says how the device, or the polling, has failed as a whole; nil if it
// never has. It stays, also when the device is there again.
func (p *Poller) Failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ill
}

// isDead reports whether polling has ended.
func (p *Poller) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead != nil
}

var errDeviceDown = errors.New("device is down")

func (p *Poller) notice(e *transport.Event) (news bool) {
	switch e.Kind {
	case transport.EventEndpointFailed:
		if l := (*p.links.Load())[e.Endpoint]; l != nil {
			l.brokeAt(p, e.Endpoint, fmt.Errorf("%s: %s", p.carrier.Name(), e.Detail))
			return true
		}
	case transport.EventDeviceDown:
		p.fell(fmt.Errorf("%s: %w: %s", p.carrier.Name(), errDeviceDown, e.Detail))
		return true
	}
	return false
}

// serve takes one completion and reports whether the rank has to know.
func (p *Poller) serve(c *transport.Completion) (news bool) {
	l := (*p.links.Load())[c.Endpoint]
	if l == nil {
		return false
	}
	number := c.ID & (1<<56 - 1)
	if c.Status != transport.StatusOK {
		if l.Err() == nil && l.reconnector.state.Load() != linkDraining {
			l.brokeAt(p, c.Endpoint, fmt.Errorf("%s: a request ended with status %d, code %d", p.carrier.Name(), c.Status, c.Vendor))
		}
		l.flushed(c.ID>>56, number)
		return true
	}
	if l.Err() != nil {
		return true
	}
	switch c.ID >> 56 {
	case idMessage:
		return l.count(l.send.completed(number))
	case idGrant:
		l.grantEnded()
	case idReceive:
		return l.received(c)
	case idPathProbe:
		l.reached.Store(true)
		l.reconnector.ring()
	}
	return false
}

// flushed: a request has ended that came to nothing.
func (l *Link) flushed(kind, number uint64) {
	switch kind {
	case idMessage:
		l.send.completed(number)
	case idGrant:
		l.recv.granting.Store(false)
	}
}

// received replaces the receive first: the peer may send as soon as anything
// was granted. What an endpoint still has that carries nothing any more counts.
func (l *Link) received(c *transport.Completion) (news bool) {
	if l.reconnector.state.Load() != linkDraining {
		l.tried(l.recv.repost())
	}
	kind, tag, n := splitImm(c.Imm)
	switch {
	case !c.HasImm || tag != l.recv.tag:
		return l.count(false)
	case kind == immPathProbe:
		return false
	case kind == immGrant:
		return l.count(l.send.granted(n))
	case !l.recv.arrived(kind, n, c.NumBytes):
		return l.count(false)
	}
	l.stats.receivedMessages.Add(1)
	l.stats.receivedBytes.Add(uint64(c.NumBytes))
	return true
}

// count counts what meant nothing.
func (l *Link) count(meant bool) bool {
	if !meant {
		l.stats.ignored.Add(1)
	}
	return meant
}

// grantEnded sends what was released meanwhile.
func (l *Link) grantEnded() {
	if l.recv.granting.CompareAndSwap(true, false) && !l.Broken() {
		l.tried(l.recv.grant(&l.recv.byPoller))
	}
}

// tried makes a failed post the end of its endpoint.
func (l *Link) tried(on transport.Endpoint, err error) {
	if err != nil {
		l.brokeOn(on, err)
	}
}
