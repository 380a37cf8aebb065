package fabric

import (
	"fmt"

	"github.com/moewire/moewire/core/endpoint"
)

// handshakeID is a fabric's, drawn when it is opened; zeros: not known.
//
// A signed handshake names the fabric that says it and the one that it is for. Otherwise
// the channel could turn a handshake back, or bring it to another fabric, where the newer
// generation in it would end a connection. Fabrics do not know one another's ids at
// first. So a handshake for another fabric changes nothing at the fabric that gets it,
// which answers with an introduction: the two ids alone, without a handshake. The
// receiver of the introduction says what it had to say again, to the right id. The caller
// alone says which number a peer has.
type handshakeID [16]byte

const handshakeIDsBytes = 2 * len(handshakeID{})

// sealLocked signs what there is to be said to a peer. The introduction that is due comes
// first, then the handshake; while the peer's id is not known, an introduction takes the
// handshake's place. The caller holds the lock of handshakes.
func (f *Fabric) sealLocked(buf []byte, p *peer) (length int, err error) {
	to, says := p.asked, false
	if to == (handshakeID{}) {
		to, says, p.hasHandshake = p.theirs, p.theirs != handshakeID{}, false
	}
	p.asked = handshakeID{}
	if p.hasHandshake {
		f.handshakes.addLocked(p)
	}
	b := append(make([]byte, 0, MaxHandshakeBytes), signedHandshakeHead[:]...)
	b = append(append(append(b, byte(f.cfg.Mode)), f.id[:]...), to[:]...)
	if says {
		b = p.handshake.Append(b)
	}
	signed, err := f.notary.Seal(buf[:0], b)
	return len(signed), err
}

// deliverSigned is Deliver where handshakes are signed.
func (f *Fabric) deliverSigned(from endpoint.Peer, handshake []byte) error {
	b, err := f.notary.Open(handshake)
	if err != nil {
		return fmt.Errorf("%w: %w", endpoint.ErrHandshake, err)
	}
	if b, err = f.checkHead(from, b, signedHandshakeHead); err != nil {
		return err
	}
	if len(b) < handshakeIDsBytes {
		return fmt.Errorf("%w: %d bytes without ids", endpoint.ErrHandshake, len(b))
	}
	theirs, to, b := handshakeID(b), handshakeID(b[len(handshakeID{}):]), b[handshakeIDsBytes:]
	if theirs == f.id || theirs == (handshakeID{}) {
		return fmt.Errorf("%w: its id is this fabric's own, or 0", endpoint.ErrHandshake)
	}
	p, err := f.peerOf(from)
	if err != nil {
		return err
	}
	if isForUs := f.meet(p, theirs, to); !isForUs || len(b) == 0 {
		return nil
	}
	return f.notifyStore(from, b)
}

// meet learns a peer's id from what is for this fabric, and says again what
// that peer has not been told; it answers what is not.
func (f *Fabric) meet(p *peer, theirs, to handshakeID) (isForUs bool) {
	n := &f.handshakes
	n.mu.Lock()
	defer n.mu.Unlock()
	switch isForUs = to == f.id; {
	case !isForUs:
		p.asked = theirs
	case p.theirs == theirs:
		return true
	default:
		p.theirs, p.hasHandshake = theirs, p.known
		if !p.hasHandshake {
			return true
		}
	}
	n.addLocked(p)
	return isForUs
}
