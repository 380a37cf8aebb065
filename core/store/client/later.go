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
	l.peer.later(l.lacks)
	for wait := l.peer.client.cfg.ProbeMax; l.rest(wait); wait = min(2*wait, latest) {
		if l.sharedNow() {
			return
		}
	}
}

// sharedNow asks once. false: it is to be asked again.
func (l *link) sharedNow() bool {
	found, err := l.invite(time.Now().Add(l.peer.client.cfg.Connect), l.askName)
	var refused noCarrier
	var later notNow
	switch {
	case err == nil:
		_ = found.near.Close() // the link is in use: it stays where it is
		l.gain(found)
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

// gain gives a link that runs the arena.
func (l *link) gain(found given) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		_ = found.view.Close()
		return
	}
	l.attach(found)
	l.near = nil
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
