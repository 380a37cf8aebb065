package link

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/transport"
)

// What the goroutine does that reconnects a link, in this order.

// hold keeps every goroutine from posting, until resume. The endpoint is retired first: a
// grant under way may end by that alone.
func (l *Link) hold(until time.Time) error {
	old := l.endpoint()
	var failure error
	err := l.pauseUntil(until, func() bool {
		failure = old.Retire()
		return failure == nil
	}, func() bool {
		return l.send.posting.CompareAndSwap(false, true)
	}, func() bool {
		return l.recv.granting.CompareAndSwap(false, true) // the end of a grant releases it
	})
	if err != nil {
		return errors.Join(err, failure)
	}
	return nil
}

// drain waits until nothing of the old endpoint comes any more. What it had outstanding may
// have been polled and not looked at when it closes: so the poller knows it until
// it has gone around once more.
func (l *Link) drain(until time.Time) error {
	old := l.endpoint()
	var failure error
	err := l.pauseUntil(until, func() bool {
		failure = errors.Join(old.Retire(), old.Close())
		return failure == nil
	})
	if err != nil {
		return errors.Join(err, failure)
	}
	poller := l.present().poller
	round := poller.rounds.Load()
	poller.carrier.Wake()
	if err := l.pauseUntil(until, func() bool { return poller.rounds.Load() != round }); err != nil {
		return err
	}
	poller.remove(old.ID(), l)
	return nil
}

// pauseUntil looks until all are so, one after the other.
func (l *Link) pauseUntil(until time.Time, so ...func() bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		for len(so) > 0 && so[0]() {
			so = so[1:]
		}
		if len(so) == 0 {
			return nil
		}
		if err := l.mayGoOn(until); err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-l.reconnector.bell: // it has failed, perhaps
		case <-timer.C:
		}
	}
}

// mayGoOn: the link has not failed, and there is time left.
func (l *Link) mayGoOn(until time.Time) error {
	if err := l.Err(); err != nil {
		return err
	}
	if !time.Now().Before(until) {
		return fmt.Errorf("%w in time: %w", errNoPath, os.ErrDeadlineExceeded)
	}
	return nil
}

// lookAgain bounds how long a bell is waited for.
const lookAgain = 10 * time.Millisecond

// waitFor returns when something is so, or at a time; an error if it cannot go
// on.
func (l *Link) waitFor(until, at time.Time, so func() bool) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for !so() && time.Now().Before(at) {
		if err := l.mayGoOn(until); err != nil {
			return err
		}
		timer.Reset(min(lookAgain, max(0, time.Until(at))))
		select {
		case <-l.reconnector.bell:
		case <-timer.C:
		}
	}
	return l.mayGoOn(until)
}

// prepare ends the endpoint before the next attempt, and chooses that one's carrier.
func (l *Link) prepare(until time.Time, cause error) error {
	if err := l.drain(until); err != nil {
		return err
	}
	l.noteProgress()
	if err := l.goOver(until, cause); err != nil {
		return err
	}
	return l.countTry()
}

// noteProgress begins to count anew if something has come.
func (l *Link) noteProgress() {
	m := &l.reconnector
	if moved := l.send.acked.Load() + l.recv.seen; moved != m.moved {
		m.moved, m.tries, m.failed = moved, 0, 0
	}
}

// countTry bounds connections that lead to nothing.
func (l *Link) countTry() error {
	m := &l.reconnector
	if m.failed >= m.cfg.Tries {
		return fmt.Errorf("%w, %d of them in a row", errNoProgress, m.failed)
	}
	m.tries++
	return nil
}

// attempt makes one connection; nil: the link is up.
func (l *Link) attempt(until time.Time) error {
	m := &l.reconnector
	number := m.next()
	have := l.recv.forget()
	released := l.recv.released.Load()
	if err := l.renew(number); err != nil {
		return err
	}
	own := &reconnectMessage{kind: reconnectOffer, number: number, have: have, released: released, offer: l.Offer()}
	if err := l.sendMessage(until, number, own); err != nil {
		return err
	}
	if err := l.awaitOffer(until, number); err != nil {
		return err
	}
	if err := l.join(until); err != nil {
		return err
	}
	if err := l.sendMessage(until, number, &reconnectMessage{kind: reconnectLinked, number: number}); err != nil {
		return err
	}
	if err := l.await(until, number, func() bool { return m.peer(&m.linked) == number }); err != nil {
		return err
	}
	m.failed++ // until something comes
	if _, err := l.pathProbe(); err != nil {
		return err
	}
	if err := l.await(until, number, l.reached.Load); err != nil {
		return err
	}
	return l.resume(released)
}

// awaitOffer waits for the peer's offer of that number. One for a carrier that this side
// has left is passed over: the peer follows.
func (l *Link) awaitOffer(until time.Time, number uint64) error {
	m := &l.reconnector
	err := l.await(until, number, func() bool { return m.peer(&m.offer.number) == number && l.peerWay() >= l.at })
	if err == nil && l.peerWay() > l.at && l.next() != nil {
		return errGoesOver
	}
	return err
}

// next begins an attempt: it is the number of the endpoint to be made.
func (m *reconnector) next() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = m.offer.number
	return max(m.number+1, m.offer.number)
}

// renew makes an endpoint with its receives.
func (l *Link) renew(number uint64) error {
	ep, err := l.newEndpoint()
	if err != nil {
		return err
	}
	l.reached.Store(false)
	l.send.ep, l.recv.ep = ep, ep
	l.recv.tag = (l.recv.tag + 1) & tagMask
	m := &l.reconnector
	m.mu.Lock()
	l.ep, m.number = ep, number
	m.state.Store(linkMaking)
	m.mu.Unlock()
	if err := l.present().poller.add(ep.ID(), l); err != nil {
		return err
	}
	return l.postReceives()
}

// join connects with the peer's endpoint. What it says it has is taken over
// before that: nothing comes from it yet.
func (l *Link) join(until time.Time) error {
	m := &l.reconnector
	m.mu.Lock()
	theirs, number := m.offer, m.number
	m.mu.Unlock()
	if theirs.number != number {
		return errOvertaken // since it was looked at
	}
	o, err := parseOffer(theirs.offer)
	if err == nil {
		err = l.agree(&o)
	}
	if err == nil && (uint64(min(l.depth, o.depth)) != l.send.depth || o.longest < l.send.longest) {
		err = transport.ErrMismatch
	}
	if err != nil {
		l.Break(err)
		return err
	}
	if !l.send.goBack(theirs.have, theirs.released) {
		l.Break(errNumbers)
		return errNumbers
	}
	l.send.remote, l.recv.remote = o.ring, o.ring
	l.send.tag, l.recv.peerTag = o.tag, o.tag
	l.setPeer(&o)
	return l.connect(o.address, number, until)
}

// connect is the endpoint's Connect, until the attempt is over.
func (l *Link) connect(address []byte, number uint64, until time.Time) error {
	ep, ended := l.endpoint(), make(chan error, 1)
	end := func(err error) {
		ended <- err
		l.reconnector.ring()
	}
	safego.Go("link connect", func() { end(ep.Connect(address, until)) }, end)
	var result error
	returned := false
	over := l.await(until, number, func() bool {
		select {
		case result = <-ended:
			returned = true
		default:
		}
		return returned
	})
	if !returned {
		_ = ep.Retire() // so it ends
		<-ended
	}
	if over != nil {
		return over
	}
	return result
}

// resume makes the link carry messages again. The peer was told of so many that
// were released.
func (l *Link) resume(released uint64) error {
	l.recv.granted.Store(released)
	m := &l.reconnector
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := l.Err(); err != nil {
		return err // retireSoon leaves it to this goroutine
	}
	if m.bad == nil {
		m.state.Store(linkUp)
		m.upFrom = time.Now()
	}
	return m.bad
}

// resumed allows posting again.
func (l *Link) resumed() {
	l.stats.reconnects.Add(1)
	l.send.posting.Store(false)
	l.recv.granting.Store(false)
	l.tried(l.send.pump())
	l.tried(l.recv.grant(&l.recv.byMaker))
	l.ring()
	l.tellWentOver()
}

// sendMessage tells the peer, unless the attempt is over.
func (l *Link) sendMessage(until time.Time, number uint64, what *reconnectMessage) error {
	b := what.encode()
	return l.await(until, number, func() bool { return l.reconnector.cfg.Send(b) })
}

// await waits until something is so, or the attempt is over.
func (l *Link) await(until time.Time, number uint64, so func() bool) (err error) {
	var over error
	err = l.waitFor(until, until, func() bool {
		over = l.reconnector.overFor(number)
		return over != nil || so()
	})
	return errors.Join(over, err)
}

// overFor says why an attempt is over; nil while it is not.
func (m *reconnector) overFor(number uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.offer.number > number:
		return errOvertaken
	case m.down != nil:
		return m.down
	}
	return m.bad
}

// peer reads what the peer has said.
func (m *reconnector) peer(number *uint64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *number
}
