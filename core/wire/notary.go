package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Sizes of signed datagrams.
const (
	// MaxDatagramBytes bounds what a datagram says.
	MaxDatagramBytes = 1024
	// DatagramOverheadBytes is what Seal adds.
	DatagramOverheadBytes = LengthBytes + datagramHeadBytes + TrailerBytes

	datagramHeadBytes = 8
	labelDatagram     = "moewire 2 note"
)

// Notary signs and checks single frames that the caller carries, outside of any session.
// They are statements of a sender's whole state, so one that is lost, doubled or late
// does no harm. Notary does not tell which holder of the key has signed. It does not
// refuse a frame that was here before, as long as its time is accepted. Safe for
// concurrent use.
type Notary struct {
	counters *Counters
	now      func() time.Time

	mu   sync.Mutex
	ring ringSigners
}

// NewNotary uses of config Keys, Counters and Now. It follows a Reload: it
// signs with the ring's current key and accepts any.
func NewNotary(config Config) (*Notary, error) {
	if config.Keys == nil {
		return nil, errors.New("wire: Config.Keys is nil; there is no mode without keys")
	}
	return &Notary{counters: config.Counters, now: config.Now, ring: newRingSigners(config.Keys, labelDatagram)}, nil
}

// Seal appends a frame that says datagram to dst. ErrLength if it is longer than
// MaxDatagramBytes; dst is as it was then.
func (n *Notary) Seal(dst, datagram []byte) ([]byte, error) {
	if len(datagram) > MaxDatagramBytes {
		return dst, ErrLength
	}
	size := DatagramOverheadBytes + len(datagram)
	dst = slices.Grow(dst, size)
	frame := dst[len(dst) : len(dst)+size]
	setLength(frame)
	n.mu.Lock()
	defer n.mu.Unlock()
	id, sign := n.ring.current()
	b := frame[LengthBytes:]
	b[0], b[1], b[2], b[3] = Version, byte(kindDatagram), 0, 0
	binary.LittleEndian.PutUint32(b[4:], id)
	copy(b[datagramHeadBytes:], datagram)
	sign.sign(frame, clock(n.now))
	return dst[:len(dst)+size], nil
}

// Open checks a whole frame and returns what it says, a part of the frame's
// memory. The errors are a Reason, wrapped.
func (n *Notary) Open(frame []byte) ([]byte, error) {
	if reason := n.check(frame); reason != 0 {
		return nil, fmt.Errorf("datagram of %d bytes: %w", len(frame), n.counters.refuse(reason))
	}
	n.counters.accept()
	return frame[LengthBytes+datagramHeadBytes : len(frame)-TrailerBytes], nil
}

// check looks at length, key and tag, and only then at the rest.
func (n *Notary) check(frame []byte) Reason {
	size := len(frame) - DatagramOverheadBytes
	if size < 0 || size > MaxDatagramBytes || binary.LittleEndian.Uint32(frame) != uint32(len(frame)-LengthBytes) {
		return ErrLength
	}
	b := frame[LengthBytes:]
	n.mu.Lock()
	defer n.mu.Unlock()
	if reason := n.ring.check(frame, kindDatagram); reason != 0 {
		return reason
	}
	switch {
	case b[2] != 0 || b[3] != 0:
		return ErrField
	case !fresh(signedAt(frame), uint64(clock(n.now))):
		return ErrTime
	}
	return 0
}

// String does not show keys.
func (n *Notary) String() string { return hidden }

// GoString does not, either.
func (n *Notary) GoString() string { return hidden }

// Format does not, either.
func (n *Notary) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(hidden)) }
