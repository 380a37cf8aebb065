package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/store/message"
)

// latest is the longest time between two requests for an arena that a server, or this process, could not give at
// first.
const latest = time.Minute

// shareLater asks for the arena again, less and less often, until it is there or cannot be. It ends with the link.
func (l *link) shareLater() {
	for wait := l.peer.client.cfg.ProbeMax; l.rest(wait); wait = min(2*wait, latest) {
		if l.sharedNow() {
			return
		}
	}
}

// sharedNow asks once. It reports false if it has to be asked again.
func (l *link) sharedNow() bool {
	deadline := time.Now().Add(l.peer.client.cfg.Connect)
	found, err := l.invite(halfOf(deadline), l.askName)
	var refused noCarrier
	var later notNow
	switch {
	case err == nil:
		l.hasCome(found, deadline)
		return true
	case errors.As(err, &later):
		return false
	case errors.As(err, &refused):
		l.peer.latch(err)
	}
	return true // or the server has no arena, or is gone
}

// askName says a name to the server while others use the link.
func (l *link) askName(name []byte) (message.Status, []byte, error) {
	a := &ask{payload: name, most: message.SharedBytes}
	_, err := l.peer.client.one(l, &part{code: message.Share, ask: a}, 0)
	if a.answered {
		return a.status, a.answer, nil
	}
	if !errors.Is(err, ErrClosed) {
		err = notNow{err} // busy, or slow: a link that ends ends this, too
	}
	return 0, nil, err
}

// hasCome takes an arena that comes while the link is in use. If a session begins over the socket that came with it,
// requests go over that one from then on, else over the link as before.
func (l *link) hasCome(found given, deadline time.Time) {
	m := l.peer.linkOver(found.localConn, deadline)
	if m == nil {
		l.gain(found)
		return
	}
	m.attach(found)
	m.ran = make(chan struct{})
	defer close(m.ran)
	if !l.peer.exchange(l, m) {
		m.closeView()
		_ = m.nc.Close()
		return
	}
	l.peer.client.start("store: connection that is left", l.leave)
	m.run()
	l.fail(m.cause()) // it is no server's any more
}

// exchange puts a link in the place of one that runs.
func (p *peer) exchange(l, m *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.link != l || l.cause() != nil {
		return false
	}
	p.link, p.left, l.successor = m, l, m
	return true
}

// errLeft is why a link ends: a better one has its place.
var errLeft = errors.New("requests go another way now")

// leave ends a link that gets no new requests, once its leases and its requests have ended.
func (l *link) leave() {
	for wait := l.successor.hold + leaveEvery; l.rest(wait); wait = leaveEvery {
		if l.isIdle() {
			l.fail(errLeft)
		}
	}
}

// leaveEvery is how often a link that is left is looked at.
const leaveEvery = time.Second

func (l *link) isIdle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.running) == 0 && len(l.queue) == 0 && !l.sending && !l.sealed
}

// gain gives the arena to a running link.
func (l *link) gain(found given) {
	closeBounce(found.bounce)
	found.localConn, found.bounce = nil, nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		_ = found.view.Close()
		return
	}
	l.attach(found)
}

// rest waits, and reports whether the link is there still.
func (l *link) rest(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.gone:
		return false
	}
}

// later says once of a server that its blocks come by TCP for a while.
func (p *peer) later(err error) {
	if p.said.CompareAndSwap(false, true) {
		p.client.cfg.Warn(fmt.Sprintf("%s: blocks come by TCP for now, not by shared memory, which is tried again: %v", p.name, err))
	}
}
