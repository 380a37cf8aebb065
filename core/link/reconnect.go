package link

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// A carrier's connection may break though both processes live: a device in between resets
// it, a queue pair fails, a port goes down. Then the link gets a new endpoint, over the
// same carrier or the next one (ways.go), between the same rings. Each side sends
// reconnect messages about it over the control connection, to the other's Deliver:
//
//  1. The side that notices has its endpoint retired, and waits until that has
//     nothing outstanding and all of its completions were looked at. From then on
//     it knows which messages have arrived.
//  2. It makes an endpoint with the next number and offers that, with the number
//     of messages that have arrived without a gap. It forgets the messages behind
//     a gap. A side that gets an offer with a higher number than its own does the
//     same with that number; so both meet, whichever was first, and if both were.
//  3. Both connect and say so, then try the path with an empty write each.
//  4. Each sends again the messages that the other one does not have: they are
//     still in its ring, and go to the same place.

// Reconnecting says how a link that breaks is reconnected.
type Reconnecting struct {
	// Within bounds how long one break may last. After that the link has failed, a
	// second later at most if the device does not answer.
	Within time.Duration
	// Tries bounds connections made in a row over which no message and no grant
	// has come. Default 16. An attempt that leads to no connection is none:
	// Within bounds those.
	Tries int
	// Send gives a reconnect message of at most MaxControlBytes to the peer's Deliver: once each,
	// in order. It does not block; false: not now, try again. Safe for concurrent
	// use.
	Send func(message []byte) bool
	// WentOver, if not nil, is told once the link carries messages over another carrier
	// than it did, and why that one was left.
	WentOver func(from string, why error)
}

// Of Reconnecting.Tries: a link that was up for steadyFor begins to count anew.
const (
	maxTries  = 16
	steadyFor = time.Minute
)

// States of a link that has not failed.
const (
	linkUp       = iota
	linkDraining // broken; the old endpoint still has something outstanding
	linkMaking   // there is another endpoint, which does not carry messages yet
)

// reconnector is the part of a link that reconnects it.
type reconnector struct {
	state atomic.Uint32 // changed under mu
	bell  chan struct{}

	mu         sync.Mutex       // guards what follows, and Link.ep
	cfg        Reconnecting     // no Send: never reconnected
	over       error            // why it is not reconnected any more
	number     uint64           // of the endpoint
	cause      error            // of the present break
	breaks     uint64           // there were so many
	bad        error            // why the present attempt came to nothing
	down       error            // how the present carrier's device has failed, while there is another
	peerCan    bool             // the peer can go over, too
	offer      reconnectMessage // of the peer, with the highest number
	known      uint64           // its number when the present attempt began
	linked     uint64           // the highest number that the peer is connected with
	no         bool             // the peer has refused
	refusalDue bool             // the peer is to be told that this side does not go on
	upFrom     time.Time        // since when the link was up before it
	tries      int              // attempts in a row, for the pauses
	failed     int              // connections in a row, see Reconnecting.Tries
	moved      uint64           // messages and grants that had come when both were 0
	share      time.Time        // when the present carrier has had its share of the time
	left       []error          // why carriers were left, since the link was up
	done       chan struct{}
}

var (
	errOvertaken  = errors.New("the peer reconnects the link")
	errNoPath     = errors.New("no connection comes about")
	errNoProgress = errors.New("nothing comes over the connections")
)

// Reconnect says how the link is reconnected from now on when it breaks. Before
// that a break is its end. It is called once, when Try has succeeded.
func (l *Link) Reconnect(cfg Reconnecting) {
	m := &l.reconnector
	m.mu.Lock()
	if cfg.Tries == 0 {
		cfg.Tries = maxTries
	}
	m.cfg, m.upFrom = cfg, time.Now()
	behind, no, on := m.offer.number > m.number, m.no, l.ep
	m.mu.Unlock()
	switch err := l.Err(); {
	case err != nil:
		l.refuse(err)
	case no:
		l.Break(errRefused)
	case behind:
		l.brokeOn(on, errOvertaken)
	}
}

// StopReconnecting makes the next break the link's end, and the present one, too:
// the peer says nothing any more. Safe for concurrent use.
func (l *Link) StopReconnecting(cause error) {
	m := &l.reconnector
	m.mu.Lock()
	if m.over == nil {
		m.over = cause
	}
	broken := m.state.Load() != linkUp
	m.mu.Unlock()
	if broken {
		l.Break(cause)
	}
}

// Broken reports whether the link carries nothing now, though it may again.
func (l *Link) Broken() bool { return l.reconnector.state.Load() != linkUp }

// WhyNot says why the link carries nothing now; nil if it does. Safe for
// concurrent use.
func (l *Link) WhyNot() error {
	m := &l.reconnector
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := l.Err(); err != nil || m.state.Load() == linkUp {
		return err
	}
	return fmt.Errorf("link to rank %d: %w; it is being reconnected", l.rank, m.cause)
}

// brokeOn notes that an endpoint carries nothing any more. If it is the present one, the
// link is reconnected if that is possible, else it has failed. A report of an endpoint
// that was replaced comes too late. Safe for concurrent use.
func (l *Link) brokeOn(on transport.Endpoint, cause error) {
	l.broke(func() bool { return l.ep == on }, cause)
}

// brokeAt is brokeOn of an endpoint of a carrier. Two carriers may have equal numbers.
func (l *Link) brokeAt(p *Poller, on transport.EndpointID, cause error) {
	l.broke(func() bool { return l.ways[l.at].poller == p && l.ep.ID() == on }, cause)
}

func (l *Link) broke(isPresent func() bool, cause error) {
	m := &l.reconnector
	m.mu.Lock()
	if l.Err() != nil || !isPresent() {
		m.mu.Unlock()
		return
	}
	if m.cfg.Send == nil || m.over != nil {
		m.mu.Unlock()
		l.fail(cause)
		return
	}
	switch m.state.Load() {
	case linkUp:
		m.cause = cause
		m.breaks++
		m.state.Store(linkDraining)
		lift := l.limit(m.breaks, m.cfg.Within)
		m.then("link reconnect", func(before <-chan struct{}) {
			defer lift()
			l.reconnectOrRetire(before)
		}, l.fail)
	case linkMaking:
		if m.bad == nil {
			m.bad = cause
		}
	}
	m.mu.Unlock()
	m.ring()
}

// To retire an endpoint is a command to a device, which may hang. The goroutines that
// notice that a link has broken, or end it, beat and poll for others, too. So retiring is
// left to the goroutine that reconnects the link; where there is none, to one of its own.
// Close waits for both.

// then has f called on a goroutine. f gets a channel that is closed when the goroutine
// before it has ended. Under mu.
func (m *reconnector) then(name string, f func(before <-chan struct{}), onPanic func(error)) {
	before, done := m.done, make(chan struct{})
	m.done = done
	safego.Go(name, func() { defer close(done); f(before) }, onPanic)
}

// retireSoon has the endpoint of a link that has failed retired. While the link
// is reconnected its goroutine does it.
func (l *Link) retireSoon() {
	m := &l.reconnector
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.Load() != linkUp || l.ep == nil {
		return
	}
	ep := l.ep // it stays: no other one is made
	m.then("link retire", func(before <-chan struct{}) {
		_ = ep.Retire()
		if before != nil {
			<-before
		}
	}, nil)
}

func (m *reconnector) ring() {
	select {
	case m.bell <- struct{}{}:
	default:
	}
}

// endpoint is the present one.
func (l *Link) endpoint() transport.Endpoint {
	l.reconnector.mu.Lock()
	defer l.reconnector.mu.Unlock()
	return l.ep
}

// Deliver takes a reconnect message of the peer's Send. It does not block.
func (l *Link) Deliver(b []byte) {
	got, err := parseReconnectMessage(b)
	if err != nil {
		l.Break(err)
		return
	}
	m := &l.reconnector
	m.mu.Lock()
	overtaken := false
	switch got.kind {
	case reconnectOffer:
		if got.number > m.offer.number {
			m.offer = got
		}
		overtaken = got.number > m.number && m.state.Load() != linkDraining
	case reconnectLinked:
		m.linked = max(m.linked, got.number)
	case reconnectRefused:
		m.no = true
	}
	ready, on := m.cfg.Send != nil, l.ep
	m.mu.Unlock()
	switch {
	case !ready: // Reconnect looks
	case got.kind == reconnectRefused:
		l.Break(errRefused)
	case got.kind == reconnectOffer && l.Err() != nil:
		l.deferRefusal()
	case overtaken:
		l.brokeOn(on, errOvertaken)
	}
	m.ring()
}

var (
	errRefused = errors.New("the peer does not reconnect the link")
	refusal    = (&reconnectMessage{kind: reconnectRefused}).encode()
)

// refuse tells the peer that this side has given up.
func (l *Link) refuse(cause error) {
	if !errors.Is(cause, transport.ErrClosed) && !errors.Is(cause, errRefused) {
		l.deferRefusal()
	}
	l.reconnector.ring()
}

func (l *Link) deferRefusal() {
	l.reconnector.mu.Lock()
	l.reconnector.refusalDue = true
	l.reconnector.mu.Unlock()
	l.Remind()
}

// Remind tells the peer that the link is not reconnected, where that is so and Send took
// no message when it was to be told. The code that provides Send calls Remind now and
// then, else the peer may wait for the whole of Within. It does not block; safe for
// concurrent use.
func (l *Link) Remind() {
	m := &l.reconnector
	m.mu.Lock()
	send, due := m.cfg.Send, m.refusalDue && m.over == nil
	m.mu.Unlock()
	if send == nil || !due || !send(refusal) {
		return
	}
	m.mu.Lock()
	m.refusalDue = false
	m.mu.Unlock()
}

// reconnectOrRetire is the goroutine: it ends when the link is up or has failed, and
// then its endpoint is retired. The one before may still be about to end.
func (l *Link) reconnectOrRetire(before <-chan struct{}) {
	up := false
	defer func() {
		if !up {
			_ = l.endpoint().Retire()
		}
	}()
	if before != nil {
		<-before
	}
	up = l.reconnect()
}

// reconnect reports whether the link is up.
func (l *Link) reconnect() bool {
	m := &l.reconnector
	m.mu.Lock()
	now := time.Now()
	if now.Sub(m.upFrom) >= steadyFor {
		m.tries, m.failed = 0, 0
	}
	until, cause := now.Add(m.cfg.Within), m.cause
	m.mu.Unlock()
	l.startClock(until)
	err := l.hold(until)
	for err == nil {
		if err = l.prepare(until, cause); err != nil {
			break
		}
		attempt := l.attempt(l.untilFor(until))
		if attempt == nil {
			l.resumed()
			return true
		}
		if err = l.between(attempt, until); err == nil && !errors.Is(attempt, errOvertaken) {
			cause = attempt
		}
	}
	l.fail(fmt.Errorf("%w; it was not reconnected: %w", cause, err))
	l.ring()
	return false
}

// between ends an attempt that came to nothing, and pauses.
func (l *Link) between(attempt error, until time.Time) error {
	_ = l.endpoint().Retire() // drain does it again
	m := &l.reconnector
	m.mu.Lock()
	m.state.Store(linkDraining)
	m.bad = nil
	known := max(m.number, m.known)
	m.mu.Unlock()
	if l.Err() != nil || errors.Is(attempt, errOvertaken) {
		return l.Err()
	}
	pause := min(retryFirst<<min(m.tries, 16), retryMost)
	// An offer that this attempt was for, or that was there when it began, is no
	// reason to hurry.
	at := time.Now().Add(pause)
	if share := l.untilFor(until); share.Before(at) {
		at = share
	}
	return l.waitFor(until, at, func() bool { return m.isDown() != nil || m.peer(&m.offer.number) > known })
}
