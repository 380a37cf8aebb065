package ep

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
)

// DefaultSlots is how many operations may be in flight: two, so that one
// thread can send for several ranks before it receives for them, and so that
// two batches can overlap.
const DefaultSlots = 2

// Config says how a buffer is made. Ranks of one group agree on NumSlots and
// NumBytes; the rest is each rank's own.
type Config struct {
	// NumSlots is the number of operations in flight; 0 means DefaultSlots.
	NumSlots int
	// NumBytes is the address space of all slots; 0: sized by the first
	// dispatch, which later ones must fit.
	NumBytes int64
	// DebugFill overwrites released memory with 0xff (NaN in every dtype).
	DebugFill bool
	// CorruptCombine flips one bit of every combine result. It exists so
	// that tests can show that they would notice.
	CorruptCombine bool
	// NoRecord turns the recording of operations off: no statistics, no
	// trace, no events of slow ranks.
	NoRecord bool
	// SlowAfter is how long a wait on a rank may last before it becomes an
	// event; 0 means DefaultSlowAfter.
	SlowAfter time.Duration
	// EventCount is raised by one with every event, if it is given.
	EventCount *atomic.Uint64
}

func (c *Config) check() error {
	if c.NumSlots == 0 {
		c.NumSlots = DefaultSlots
	}
	if c.SlowAfter == 0 {
		c.SlowAfter = DefaultSlowAfter
	}
	if c.NumSlots < 1 || c.NumSlots > layout.MaxSlots {
		return invalid("num_slots %d, allowed 1 to %d", c.NumSlots, layout.MaxSlots)
	}
	if c.NumBytes < 0 {
		return invalid("num_ep_buffer_bytes %d, allowed 0 and more", c.NumBytes)
	}
	least := int64(c.NumSlots) * layout.RegionBytes
	if c.NumBytes > 0 && c.NumBytes < least {
		return invalid("num_ep_buffer_bytes %d, allowed 0, or at least %d for %d slots", c.NumBytes, least, c.NumSlots)
	}
	return nil
}

// Params encodes what ranks must agree on, for their metadata.
func (c Config) Params() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(c.NumSlots))
	return binary.LittleEndian.AppendUint64(out, uint64(c.NumBytes)), nil
}

// CheckParams compares every rank's Params with those of rank self.
func CheckParams(self int, all [][]byte) error {
	names := []string{"num_slots", "num_ep_buffer_bytes"}
	for rank, other := range all {
		if len(other) != len(all[self]) || len(other) != 8*len(names) {
			return fmt.Errorf("%w: rank %d sent %d bytes of parameters, this rank %d", ErrMismatch, rank, len(other), len(all[self]))
		}
		for i, name := range names {
			mine, theirs := binary.LittleEndian.Uint64(all[self][8*i:]), binary.LittleEndian.Uint64(other[8*i:])
			if mine != theirs {
				return fmt.Errorf("%w: %s is %d on rank %d and %d on rank %d", ErrMismatch, name, theirs, rank, mine, self)
			}
		}
	}
	return nil
}
