package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

// A link whose carrier fails may go over to another carrier. Its rings are registered with
// both from the beginning, and the numbers of its messages are the link's own. So a
// reconnect over the other carrier loses nothing and repeats nothing, as any reconnect.
//
// A side goes over for one of the reasons of whyGoOver, if both sides can, and never back.
// Its offers name the carrier. So the other side follows; until it has, its offers are for
// a connection that does not come about.

// way is a carrier that a link may use.
type way struct {
	poller  *Poller
	regions [2]transport.Region // of the receive ring, of the staging ring
	unfit   error               // why the rings are not registered here
}

// register makes the rings known to the carrier.
func (w *way) register(rings *[2]domain.Segment, n int64) (err error) {
	for i, access := range [...]transport.Access{transport.AccessWrite, 0} {
		if w.regions[i], err = domain.RegisterSegment(w.poller.carrier, rings[i], n, access); err != nil {
			w.regions[i] = nil
			return err
		}
	}
	return nil
}

func (w *way) close() (err error) {
	for i, r := range w.regions {
		if r == nil {
			continue
		}
		if e := r.Close(); e != nil {
			err = errors.Join(err, e)
			continue
		}
		w.regions[i] = nil
	}
	return err
}

func (w *way) usable() bool { return w.unfit == nil && w.poller.Failed() == nil }

// addStandby lets the link go over to a carrier. What is outstanding must fit all carriers.
func (l *Link) addStandby(p *Poller) {
	limits := p.carrier.Limits()
	if depth := l.cfg.depth(&limits); depth >= 1 {
		l.ways = append(l.ways, way{poller: p})
		l.depth = min(l.depth, depth)
		l.send.longest = min(l.send.longest, l.cfg.maxMessage(&limits))
		l.recv.longest = l.send.longest
	}
}

// registerAll registers the rings with every carrier: the first one must take them.
func (l *Link) registerAll() error {
	for i := range l.ways {
		w := &l.ways[i]
		if w.unfit = w.register(&l.rings, l.cfg.RingBytes); w.unfit != nil && i == 0 {
			return w.unfit
		}
	}
	for i, r := range l.ways[0].regions {
		l.bytes[i] = r.Bytes()
	}
	l.enter()
	return nil
}

// enter makes what is posted from now on name the rings as the present carrier knows them.
func (l *Link) enter() {
	w := l.present()
	l.recv.ring, l.send.staging = w.regions[0], w.regions[1]
}

// present is the way that is in use.
func (l *Link) present() *way {
	l.reconnector.mu.Lock()
	defer l.reconnector.mu.Unlock()
	return &l.ways[l.at]
}

// next is the way after the present one; nil if the link cannot go over. Under
// reconnector.mu, but on the goroutine that reconnects the link.
func (l *Link) next() *way {
	if l.at+1 < len(l.ways) && l.reconnector.peerCan && l.ways[l.at+1].usable() {
		return &l.ways[l.at+1]
	}
	return nil
}

// setPeer notes what the peer can do.
func (l *Link) setPeer(o *offer) {
	l.reconnector.mu.Lock()
	defer l.reconnector.mu.Unlock()
	l.reconnector.peerCan = o.standby
}

// deviceFell: the device of a carrier has failed as a whole. If it is not polled any more,
// what is outstanding never ends.
func (l *Link) deviceFell(p *Poller, cause error) {
	m := &l.reconnector
	m.mu.Lock()
	here := l.ways[l.at].poller == p
	over := here && !p.isDead() && m.cfg.Send != nil && m.over == nil && l.next() != nil
	if over {
		m.down = cause
	}
	on := l.ep
	m.mu.Unlock()
	switch {
	case over:
		l.brokeOn(on, cause)
	case here:
		l.fail(cause)
	}
}

// What follows is for the goroutine that reconnects the link.

// startClock gives the present carrier half of the time that is left, if there is another.
func (l *Link) startClock(until time.Time) {
	now := time.Now()
	l.reconnector.share = now.Add(until.Sub(now) / 2)
}

// untilFor is when an attempt over the present carrier is to end.
func (l *Link) untilFor(until time.Time) time.Time {
	if l.next() != nil && l.reconnector.share.Before(until) {
		return l.reconnector.share
	}
	return until
}

var (
	errFollowed = errors.New("the peer goes on over another carrier")
	errGoesOver = fmt.Errorf("%w: %w", errOvertaken, errFollowed)
)

// whyGoOver is why the link leaves its carrier; nil: it does not. cause is why it carries
// nothing.
func (l *Link) whyGoOver(cause error) error {
	m := &l.reconnector
	switch down := m.isDown(); {
	case down != nil:
		return down
	case l.peerWay() > l.at:
		return errFollowed
	case m.failed >= m.cfg.Tries:
		return fmt.Errorf("%w: %w", errNoProgress, cause)
	case !time.Now().Before(m.share):
		return cause
	}
	return nil
}

// goOver changes the carrier, if there is a reason. Nothing of the earlier endpoint comes
// any more. An error: the carrier is gone, and there is no other.
func (l *Link) goOver(until time.Time, cause error) error {
	m := &l.reconnector
	why := l.whyGoOver(cause)
	if why == nil {
		return nil
	}
	if l.next() == nil {
		return m.isDown()
	}
	l.ways[l.at].poller.leave(l.endpoint().ID(), l)
	m.mu.Lock()
	l.at++
	m.down = nil
	m.mu.Unlock()
	m.tries, m.failed, m.left = 0, 0, append(m.left, why)
	l.enter()
	l.startClock(until)
	return nil
}

// isDown is how the present carrier's device has failed as a whole.
func (m *reconnector) isDown() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// peerWay is the way that the peer's latest offer is for; the present one for an offer that
// join refuses.
func (l *Link) peerWay() int {
	m := &l.reconnector
	m.mu.Lock()
	offered := m.offer
	m.mu.Unlock()
	if offered.number == 0 {
		return 0
	}
	o, err := parseOffer(offered.offer)
	for i := range l.ways {
		if err == nil && l.ways[i].poller.carrier.Name() == o.carrier {
			return i
		}
	}
	return l.at
}

// tellWentOver tells of the carriers that the link has left, once it is up again.
func (l *Link) tellWentOver() {
	m := &l.reconnector
	m.mu.Lock()
	tell, at := m.cfg.WentOver, l.at
	m.mu.Unlock()
	for i, why := range m.left {
		if tell != nil {
			tell(l.ways[at-len(m.left)+i].poller.carrier.Name(), why)
		}
	}
	m.left = nil
}
