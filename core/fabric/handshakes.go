package fabric

import (
	"bytes"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// handshakeHead precedes every handshake: what it is, and the fabric's mode. Both ends
// must have the same, so a handshake with another one is refused.
var (
	handshakeHead       = [...]byte{'M', 'W', 'F', 1}
	signedHandshakeHead = [...]byte{'M', 'W', 'F', 3}
)

const handshakeHeadBytes = len(handshakeHead) + 1

// MaxHandshakeBytes bounds a handshake.
const MaxHandshakeBytes = handshakeHeadBytes + handshakeIDsBytes + endpoint.MaxHandshakeBytes + wire.DatagramOverheadBytes

// handshakes are those to be carried: of each peer only the newest, because a handshake
// states all that its sender has to say.
type handshakes struct {
	mu    sync.Mutex
	queue []*peer // in the order in which they came to have one
	ready chan struct{}
}

// addLocked puts a peer into the queue, unless it is there.
func (n *handshakes) addLocked(p *peer) {
	if !p.queued {
		p.queued = true
		n.queue = append(n.queue, p)
	}
	n.wakeLocked()
}

func newHandshakes(n int) handshakes { return handshakes{queue: make([]*peer, 0, n)} }

// wake makes every waiting caller look again.
func (n *handshakes) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wakeLocked()
}

func (n *handshakes) wakeLocked() {
	if n.ready != nil {
		close(n.ready)
		n.ready = nil
	}
}

// keepHandshake takes a handshake from the store, in place of an older one.
func (f *Fabric) keepHandshake(to endpoint.Peer, handshake endpoint.Handshake) {
	p, err := f.peerOf(to)
	if err != nil {
		return // the store has the same bound: it says it again
	}
	n := &f.handshakes
	n.mu.Lock()
	defer n.mu.Unlock()
	if !p.hasHandshake {
		p.hasHandshake, p.known = true, true
	} else if older(&handshake, &p.handshake) {
		p.handshake.Asks = p.handshake.Asks || handshake.Asks
		return
	} else {
		handshake.Asks = handshake.Asks || p.handshake.Asks
	}
	address := append(p.handshake.Address[:0], handshake.Address...)
	p.handshake = handshake
	p.handshake.Address = address
	n.addLocked(p)
}

// older reports whether a is a former state of the sender than b. Two threads
// may come with their handshakes in either order.
func older(a, b *endpoint.Handshake) bool {
	switch {
	case a.Gen != b.Gen:
		return a.Gen < b.Gen
	case a.SeenEpoch != b.SeenEpoch:
		return a.SeenEpoch < b.SeenEpoch
	case a.SeenGen != b.SeenGen:
		return a.SeenGen < b.SeenGen
	}
	return b.Ready && !a.Ready
}

// Next takes the next handshake to be carried out into buf, which has at least
// MaxHandshakeBytes, and returns the peer that it is for. ok is false if there is none
// until the deadline. A handshake may be lost, and may come twice or late.
func (f *Fabric) Next(buf []byte, deadline time.Time) (to endpoint.Peer, length int, ok bool, err error) {
	if len(buf) < MaxHandshakeBytes {
		return 0, 0, false, invalid("room for a handshake is %d bytes, needed are %d", len(buf), MaxHandshakeBytes)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for timedOut := false; ; {
		if err := f.refusal(); err != nil {
			return 0, 0, false, err
		}
		to, length, ready, err := f.takeHandshake(buf)
		if ready == nil {
			return to, length, err == nil, err
		}
		if timedOut {
			return 0, 0, false, nil
		}
		select {
		case <-ready:
		case <-timer.C:
			timedOut = true
		}
	}
}

// takeHandshake encodes the oldest handshake, or returns what is closed when there is
// news.
func (f *Fabric) takeHandshake(buf []byte) (to endpoint.Peer, length int, ready <-chan struct{}, err error) {
	n := &f.handshakes
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		if n.ready == nil {
			n.ready = make(chan struct{})
		}
		return 0, 0, n.ready, nil
	}
	p := n.queue[0]
	n.queue = n.queue[:copy(n.queue, n.queue[1:])]
	p.queued = false
	length, err = f.encodeLocked(buf, p)
	return p.id, length, nil, err
}

// encodeLocked writes what there is to be said to a peer.
func (f *Fabric) encodeLocked(buf []byte, p *peer) (length int, err error) {
	if f.notary != nil {
		return f.sealLocked(buf, p)
	}
	p.hasHandshake = false
	b := append(buf[:0], handshakeHead[:]...)
	return len(p.handshake.Append(append(b, byte(f.cfg.Mode)))), nil
}

// checkHead returns what follows the head of a handshake.
func (f *Fabric) checkHead(from endpoint.Peer, b []byte, head [len(handshakeHead)]byte) ([]byte, error) {
	if len(b) < handshakeHeadBytes || !bytes.Equal(b[:len(head)], head[:]) {
		return nil, fmt.Errorf("%w: %d bytes that no fabric of this version has written", endpoint.ErrHandshake, len(b))
	}
	if theirs := Mode(b[len(head)]); theirs != f.cfg.Mode {
		return nil, fmt.Errorf("%w: this fabric is for %v, that of peer %d for %v", transport.ErrMismatch, f.cfg.Mode, from, theirs)
	}
	return b[handshakeHeadBytes:], nil
}

// Deliver takes a handshake that a peer's fabric has given to be carried here. One
// that is too old changes nothing.
func (f *Fabric) Deliver(from endpoint.Peer, handshake []byte) error {
	if err := f.refusal(); err != nil {
		return err
	}
	if f.notary != nil {
		return f.deliverSigned(from, handshake)
	}
	b, err := f.checkHead(from, handshake, handshakeHead)
	if err != nil {
		return err
	}
	return f.notifyStore(from, b)
}

func (f *Fabric) notifyStore(from endpoint.Peer, b []byte) error {
	n, err := endpoint.ParseHandshake(b)
	if err != nil {
		return err
	}
	if _, err := f.peerOf(from); err != nil {
		return err
	}
	f.store.Deliver(from, n)
	return nil
}
