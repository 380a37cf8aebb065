package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/limits"
)

// Config says how a buffer is made. Ranks of one group agree on NumSlots,
// NumBytes and Deterministic; the rest is each rank's own.
type Config struct {
	// NumSlots is the number of operations in flight; 0 means DefaultSlots.
	NumSlots int
	// NumBytes is the address space of all slots; 0: sized by the first
	// dispatch, which later ones must fit.
	NumBytes int64
	// Deterministic puts the rows of an expert in order of their ranks, for
	// one more exchange of words per dispatch. A dispatch is then sent only
	// once all ranks have begun it: one thread cannot drive several ranks. A
	// dispatch that is cancelled may leave a hole, as a lost rank does.
	Deterministic bool
	// DebugFill overwrites released memory with 0xff (NaN in every dtype).
	DebugFill bool
	// Joining: the group is already running. Calls work after Install.
	Joining bool
	// NoRecord turns the recording of operations off: no statistics, no
	// trace, no events of slow ranks.
	NoRecord bool
	// SlowAfter is how long a wait on a rank may last before it becomes an
	// event; 0 means DefaultSlowAfter, negative: it never does.
	SlowAfter time.Duration
	// SpinFor is how long a wait stays awake before it sleeps: it spins for
	// the first 2 µs and then yields. 0: as measured (see spinsFor); negative:
	// it sleeps at once.
	SpinFor time.Duration
	// EventCount is raised by one with every event, if it is given.
	EventCount *atomic.Uint64

	noPump bool // for tests: see Pump
}

func (c *Config) check() error {
	if c.NumSlots == 0 {
		c.NumSlots = ep.DefaultSlots
	}
	if c.SlowAfter == 0 {
		c.SlowAfter = ep.DefaultSlowAfter
	}
	if c.SlowAfter < 0 {
		c.SlowAfter = math.MaxInt64
	}
	if err := ep.InRange(limits.NumSlots, c.NumSlots); err != nil {
		return err
	}
	if err := limits.NumBytes.CheckAs("num_ep_buffer_bytes", c.NumBytes); err != nil {
		return ep.Invalid("%s", err)
	}
	least := int64(c.NumSlots) * layout.RegionBytes
	if c.NumBytes > 0 && c.NumBytes < least {
		return ep.Invalid("num_ep_buffer_bytes is %d, allowed 0, or at least %d for %d slots", c.NumBytes, least, c.NumSlots)
	}
	return nil
}

// Params encodes what ranks must agree on and this rank's Standing, for the
// metadata of a rendezvous.
func (c Config) Params(st ep.Standing) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint64(nil, uint64(c.NumSlots))
	out = binary.LittleEndian.AppendUint64(out, uint64(c.NumBytes))
	out = binary.LittleEndian.AppendUint64(out, flag(c.Deterministic))
	out = binary.LittleEndian.AppendUint64(out, uint64(st.Epoch))
	return binary.LittleEndian.AppendUint64(out, st.Next), nil
}

const (
	agreedBytes = 24 // of Params, at their beginning
	paramsBytes = 40
)

// CheckParams compares every rank's Params with those of rank self. It returns the
// Standing with which their common epoch begins. A nil entry is an absent rank.
func CheckParams(self int, all [][]byte) (next ep.Standing, err error) {
	for rank, other := range all {
		if other == nil {
			continue
		}
		if len(other) != paramsBytes || len(all[self]) != paramsBytes {
			return next, fmt.Errorf("%w: rank %d sent %d bytes of parameters, this rank %d", ep.ErrMismatch, rank, len(other), len(all[self]))
		}
		if err := compareParams(self, rank, all[self][:agreedBytes], other[:agreedBytes]); err != nil {
			return next, err
		}
		le := binary.LittleEndian
		if err := next.Include(rank, le.Uint64(other[agreedBytes:]), le.Uint64(other[agreedBytes+8:])); err != nil {
			return next, err
		}
	}
	next.Epoch++
	return next, nil
}

func compareParams(self, rank int, mine, theirs []byte) error {
	for i, name := range [...]string{"num_slots", "num_ep_buffer_bytes", "deterministic"} {
		a, b := binary.LittleEndian.Uint64(mine[8*i:]), binary.LittleEndian.Uint64(theirs[8*i:])
		if a != b {
			return fmt.Errorf("%w: %s is %d on rank %d and %d on rank %d", ep.ErrMismatch, name, b, rank, a, self)
		}
	}
	return nil
}

func flag(on bool) uint64 {
	if on {
		return 1
	}
	return 0
}
