package link

import (
	"fmt"
	"math/bits"

	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/transport"
)

// Config bounds what a link holds. It must be equal on both sides.
type Config struct {
	// RingBytes is the size of each ring, two per direction and peer: a power
	// of two from MinRingBytes to MaxRingBytes. The longest message has half of
	// it.
	RingBytes int64
	// NumMessages bounds the messages of one direction that were posted and
	// not released yet, from 2 to MaxMessages. Carriers with short queues get
	// fewer.
	NumMessages int
}

// Bounds of Config.
const (
	MinRingBytes = limits.MinRingBytes
	MaxRingBytes = limits.MaxRingBytes
	MaxMessages  = 1 << 14

	DefaultRingBytes   = 16 << 20
	DefaultNumMessages = 64
)

// alignment of messages in a ring: that of a cache line, so that what core/ep/cpu
// reads there is aligned for any type.
const alignment = 64

// Check says which field is out of bounds.
func (c *Config) Check() error {
	switch {
	case c.RingBytes < MinRingBytes || c.RingBytes > MaxRingBytes || bits.OnesCount64(uint64(c.RingBytes)) != 1:
		return fmt.Errorf("RingBytes is %d, a power of two from %d to %d is needed", c.RingBytes, MinRingBytes, MaxRingBytes)
	case c.NumMessages < 2 || c.NumMessages > MaxMessages:
		return fmt.Errorf("NumMessages is %d, 2 to %d are possible", c.NumMessages, MaxMessages)
	}
	return nil
}

// maxMessage is the longest message over a carrier. Half a ring always fits
// once the ring is empty, wherever its cursor stands.
func (c *Config) maxMessage(limits *transport.Limits) int64 {
	return min(c.RingBytes/2, limits.MaxRequestBytes) &^ (alignment - 1)
}

// depth is how many messages a carrier's queues allow: each needs a receive,
// and so does each grant; one send is kept for a grant.
func (c *Config) depth(limits *transport.Limits) int {
	return min(c.NumMessages, limits.SendDepth-1, (limits.RecvDepth-1)/2)
}

// receives is how many receives are posted for so many messages outstanding: one for each
// of the peer's, one for each grant for ours, and one for the path probe. The probe may
// not have been looked at when the first messages come.
func receives(depth int) int { return 2*depth + 1 }

// place says where a message of n bytes goes when the cursor is at pos (bytes
// since the beginning): whole, so perhaps at the ring's start.
func (c *Config) place(pos, n int64) (at int64, wraps bool) {
	if off := pos & (c.RingBytes - 1); off+n > c.RingBytes {
		return pos + c.RingBytes - off, true
	}
	return pos, false
}

func align(n int64) int64 { return (n + alignment - 1) &^ (alignment - 1) }
