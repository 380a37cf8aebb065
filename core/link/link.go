package link

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

// Link is the data path between this rank and one other. NewLink, then Offer
// to the peer and Connect with what the peer offers, then Set.Put; Close when
// no Set has it any more.
type Link struct {
	rank  int
	ring  func() // the rank's bell
	cfg   Config
	depth int
	ways  []way // by preference
	at    int   // the way in use, under reconnector.mu

	ep          transport.Endpoint // under reconnector.mu
	reconnector reconnector
	send        sender
	recv        receiver
	rings       [2]domain.Segment // receive, staging
	bytes       [2][]byte         // of these; nil: a device's

	failed  uatomic.Error
	reached atomic.Bool // a path probe has arrived
	closed  atomic.Bool
	stats   stats
}

// stats are what a link counts.
type stats struct {
	sentBytes, receivedBytes       atomic.Uint64
	sentMessages, receivedMessages atomic.Uint64
	ignored, blocked, dropped      atomic.Uint64
	reconnects                     atomic.Uint64
}

// Stats is what has gone over a link.
type Stats struct {
	SentBytes, SentMessages         uint64
	ReceivedBytes, ReceivedMessages uint64
	// Ignored counts completions and grants that meant nothing: double, late,
	// or of another link.
	Ignored uint64
	// Blocked counts refusals of Reserve because a bound was reached, Dropped
	// messages that were not sent because the link had failed.
	Blocked, Dropped uint64
	// Reconnects counts how often the link broke and was reconnected.
	Reconnects uint64
}

// Stats returns the counts. Safe for concurrent use.
func (l *Link) Stats() Stats {
	return Stats{
		SentBytes: l.stats.sentBytes.Load(), SentMessages: l.stats.sentMessages.Load(),
		ReceivedBytes: l.stats.receivedBytes.Load(), ReceivedMessages: l.stats.receivedMessages.Load(),
		Ignored: l.stats.ignored.Load(), Blocked: l.stats.blocked.Load(), Dropped: l.stats.dropped.Load(),
		Reconnects: l.stats.reconnects.Load(),
	}
}

// Add sums up what went over several links.
func (s *Stats) Add(o Stats) {
	s.SentBytes, s.SentMessages = s.SentBytes+o.SentBytes, s.SentMessages+o.SentMessages
	s.ReceivedBytes, s.ReceivedMessages = s.ReceivedBytes+o.ReceivedBytes, s.ReceivedMessages+o.ReceivedMessages
	s.Ignored, s.Blocked, s.Dropped = s.Ignored+o.Ignored, s.Blocked+o.Blocked, s.Dropped+o.Dropped
	s.Reconnects += o.Reconnects
}

// Credits is how many messages may be posted until the peer releases some, and
// how many may be outstanding at all. Of a link that is connected; safe for
// concurrent use.
func (l *Link) Credits() (left, most int) {
	acked := l.send.acked.Load() // first: what is posted meanwhile counts
	outstanding := min(l.send.sent.Load()-acked, l.send.depth)
	return int(l.send.depth - outstanding), int(l.send.depth)
}

// Memory makes memory that may be registered: zeroed, resident as it is
// touched. The caller releases it.
type Memory func(sizeBytes int64) (domain.Segment, error)

// flushFor bounds how long NewLink waits, when it fails, until what it has
// posted has completed.
const flushFor = time.Second

// NewLink makes the rings and the endpoint of a link to a rank. tag is random. If the
// carrier fails in use, the link may go over to those in standby, in that order; the peer
// has the same. On an error nothing is left.
func NewLink(p *Poller, rank int, tag uint32, cfg Config, memory Memory, standby ...*Poller) (*Link, error) {
	if err := cfg.Check(); err != nil {
		return nil, fmt.Errorf("link: configuration: %w", err)
	}
	limits := p.carrier.Limits()
	l := &Link{rank: rank, ring: p.ring, cfg: cfg, depth: cfg.depth(&limits), ways: []way{{poller: p}}}
	l.reconnector.bell = make(chan struct{}, 1)
	if l.depth < 1 {
		return nil, fmt.Errorf("link: carrier %s has queues of %d sends and %d receives: 2 and 3 are needed",
			p.carrier.Name(), limits.SendDepth, limits.RecvDepth)
	}
	longest := cfg.maxMessage(&limits)
	l.send.cfg, l.send.longest = &l.cfg, longest
	l.recv.cfg, l.recv.longest, l.recv.tag = &l.cfg, longest, tag&tagMask
	for _, s := range standby {
		l.addStandby(s)
	}
	if err := l.open(memory); err != nil {
		return nil, fmt.Errorf("link: rank %d: %w", rank, errors.Join(err, l.Close(time.Now().Add(flushFor))))
	}
	return l, nil
}

func (l *Link) open(memory Memory) (err error) {
	for i := range l.rings {
		if l.rings[i], err = memory(l.cfg.RingBytes); err != nil {
			return err
		}
	}
	if err = l.registerAll(); err != nil {
		return err
	}
	ep, err := l.newEndpoint()
	if err != nil {
		return err
	}
	l.ep, l.send.ep, l.recv.ep = ep, ep, ep
	if err = l.present().poller.add(ep.ID(), l); err != nil {
		return err
	}
	return l.postReceives()
}

func (l *Link) newEndpoint() (transport.Endpoint, error) {
	return l.present().poller.carrier.NewEndpoint(transport.EndpointSpec{SendDepth: l.depth + 1, RecvDepth: receives(l.depth)})
}

// postReceives makes sure that the peer never finds none.
func (l *Link) postReceives() error {
	for range receives(l.depth) {
		if _, err := l.recv.repost(); err != nil {
			return err
		}
	}
	return nil
}

// Connect brings the link up with what the peer's Offer has said.
func (l *Link) Connect(offer []byte, deadline time.Time) error {
	o, err := parseOffer(offer)
	if err == nil {
		err = l.agree(&o)
	}
	if err == nil {
		depth := min(l.depth, o.depth)
		l.send.init(depth)
		l.recv.init(depth)
		l.send.remote, l.recv.remote = o.ring, o.ring
		l.send.tag, l.recv.peerTag = o.tag, o.tag
		l.send.longest = min(l.send.longest, o.longest)
		l.recv.longest = l.send.longest
		l.setPeer(&o)
		err = l.ep.Connect(o.address, deadline)
	}
	if err != nil {
		return fmt.Errorf("link: rank %d over %s: %w", l.rank, l.present().poller.carrier.Name(), err)
	}
	return nil
}

func (l *Link) agree(o *offer) error {
	switch {
	case o.carrier != l.present().poller.carrier.Name():
		return fmt.Errorf("%w: it uses carrier %q", transport.ErrMismatch, o.carrier)
	case o.ring.SizeBytes != uint64(l.cfg.RingBytes):
		return fmt.Errorf("%w: ring of %d bytes, here it has %d", transport.ErrMismatch, o.ring.SizeBytes, l.cfg.RingBytes)
	case o.depth < 1 || o.depth > MaxMessages || o.longest < 1 || o.longest > l.cfg.RingBytes/2:
		return fmt.Errorf("%w: it offers %d messages of at most %d bytes", domain.ErrMetadata, o.depth, o.longest)
	}
	return nil
}

// Try finds out whether bytes of this side reach the peer, after the peer's Connect has
// returned: carriers may connect to a peer that is not there. It waits for the end of an
// empty write, at most until the deadline, and is called once, before anything else is
// sent.
func (l *Link) Try(deadline time.Time) error {
	l.tried(l.pathProbe())
	for pause := 50 * time.Microsecond; !l.reached.Load(); pause = min(2*pause, 5*time.Millisecond) {
		if err := l.Err(); err != nil {
			return err
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("link to rank %d: nothing arrives: %w", l.rank, os.ErrDeadlineExceeded)
		}
		time.Sleep(pause)
	}
	return nil
}

// pathProbe posts the empty write.
func (l *Link) pathProbe() (on transport.Endpoint, err error) {
	pathProbe := transport.SendRequest{
		ID: requestID(idPathProbe, 0), Op: transport.OpWriteImm, Imm: imm(immPathProbe, l.recv.peerTag, 0), Remote: l.recv.remote,
	}
	_, err = l.send.ep.PostSend([]transport.SendRequest{pathProbe})
	return l.send.ep, err
}

// Carrier names what carries the link, and the device.
func (l *Link) Carrier() (name, device string) {
	carrier := l.present().poller.carrier
	device = carrier.Device()
	if e, ok := l.endpoint().(interface{ Device() string }); ok { // of a carrier with several
		device = e.Device()
	}
	return carrier.Name(), device
}

// Remarks are the carrier's own, about devices that it does not use; "" if it
// has none.
func (l *Link) Remarks() string {
	if c, ok := l.present().poller.carrier.(interface{ Remarks() string }); ok {
		return c.Remarks()
	}
	return ""
}

// Err says why the link carries nothing any more; nil while it does. Safe for
// concurrent use.
func (l *Link) Err() error {
	return l.failed.Load()
}

// fail ends the link's use; the first reason stays.
func (l *Link) fail(cause error) {
	err := fmt.Errorf("link to rank %d: %w", l.rank, cause)
	if l.failed.CompareAndSwap(nil, err) {
		l.retireSoon()
		l.refuse(cause)
	}
}

// Close retires the endpoint, waits until everything posted has completed, and
// releases the memory. What has not completed by the deadline keeps its
// endpoint and its memory: the carrier may still use them. Then the error
// wraps transport.ErrBusy, and Close may be called again. Not with the
// poller's goroutine, nor while another call uses the link.
func (l *Link) Close(deadline time.Time) error {
	if l.closed.Load() {
		return nil
	}
	if l.endpoint() != nil {
		l.fail(transport.ErrClosed)
		if err := l.awaitReconnect(deadline); err != nil {
			return err
		}
		if err := l.closeEndpoint(deadline); err != nil {
			return err
		}
		l.present().poller.leave(l.endpoint().ID(), l)
	}
	var err error
	for i := range l.ways {
		err = errors.Join(err, l.ways[i].close())
	}
	if err != nil {
		return fmt.Errorf("link to rank %d: %w", l.rank, err)
	}
	for _, ring := range l.rings {
		if ring != nil {
			ring.Release()
		}
	}
	l.closed.Store(true)
	return nil
}

// awaitReconnect waits until no goroutine reconnects the link, or retires its endpoint;
// none begins to. That ends by itself once the link has failed, whatever the carrier has
// outstanding, if its device answers: so it has some time also after the deadline.
func (l *Link) awaitReconnect(deadline time.Time) error {
	l.reconnector.mu.Lock()
	done := l.reconnector.done
	l.reconnector.mu.Unlock()
	if done == nil {
		return nil
	}
	timer := time.NewTimer(max(time.Until(deadline), flushFor))
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return fmt.Errorf("link to rank %d: its endpoint is being retired: %w", l.rank, transport.ErrBusy)
	}
}

func (l *Link) closeEndpoint(deadline time.Time) error {
	_ = l.endpoint().Retire() // of a link that failed while it was reconnected
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		err := l.endpoint().Close()
		if !errors.Is(err, transport.ErrBusy) {
			return err
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("link to rank %d: %w", l.rank, err)
		}
		time.Sleep(pause)
	}
}

// Break ends the link's use from this side, as a carrier that fails does.
func (l *Link) Break(cause error) {
	l.fail(cause)
	l.ring()
}
