package client

import (
	"time"

	"github.com/moewire/moewire/core/internal/safego"
)

// turn says which goroutine reads the replies of a link: one at a time. A caller that waits for the only part that runs reads
// its reply by itself: no other thread has to be woken, and wake it. Else the receiver reads.
type turn uint8

const (
	turnNone turn = iota // nothing is to be read
	turnCaller
	turnReceiver
)

// receive reads replies where the receiver is to, until the link ends.
func (l *link) receive() error {
	for mine := l.sock == nil; ; mine = l.goesOn() {
		if !mine {
			<-l.turns
		}
		if err := l.cause(); err != nil {
			return err
		}
		if err := l.message(); err != nil {
			return err
		}
	}
}

// goesOn gives the receiver's turn up where nothing runs. false: it has none any more.
func (l *link) goesOn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sock == nil || len(l.running) > 0 || l.ended || l.err != nil {
		return true
	}
	l.turn = turnNone
	return false
}

// offer gives the receiver a turn that no other one has. The caller holds mu.
func (l *link) offer() {
	if l.turn == turnNone {
		l.turn = turnReceiver
		l.turns <- struct{}{} // it has room: the receiver has taken the one before
	}
}

// serve reads the reply to a call on its own thread. It leaves the rest to the receiver where that takes longer than a
// moment, or others have come.
func (l *link) serve(k *call, timeout time.Duration) {
	defer l.yield()
	if err := safego.Call("store: caller", func() {
		if err := l.own(k, timeout); err != nil {
			l.fail(err)
		}
	}); err != nil {
		l.fail(err)
	}
}

func (l *link) own(k *call, timeout time.Duration) error {
	l.in.Linger(true)
	defer l.in.Linger(false)
	for l.isAlone(k) {
		there, err := l.in.Arrives(timeout)
		if err != nil || !there {
			return err
		}
		if !l.isAlone(k) {
			break
		}
		if err := l.message(); err != nil {
			return err
		}
	}
	return nil
}

// isAlone reports whether a call waits for a reply, and no other one does: then the next message is of that reply.
func (l *link) isAlone(k *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.running) != 1 || l.err != nil {
		return false
	}
	for _, t := range l.running {
		return t.call == k
	}
	return false
}

// yield ends the turn of a caller.
func (l *link) yield() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn = turnNone
	if len(l.running) > 0 || l.ended || l.err != nil {
		l.offer()
	}
}

// watchEnd notices that the other side has ended the connection while nothing is read. Where that cannot be watched
// the receiver reads all the while.
func (l *link) watchEnd() {
	if l.sock == nil {
		return
	}
	_ = l.sock.AwaitEnd()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.offer()
}
