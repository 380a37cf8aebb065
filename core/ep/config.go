package ep

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/limits"
)

// DefaultSlots is how many operations may be in flight: two, so that one
// thread can send for several ranks before it receives for them, and so that
// two batches can overlap.
const DefaultSlots = 2

// DefaultSlowAfter is how long a wait on one rank may last before it becomes
// an event.
const DefaultSlowAfter = time.Second

// Config says how a buffer is made, on any engine. Ranks of one group agree on NumSlots,
// NumBytes and Deterministic; the rest is each rank's own.
type Config struct {
	// NumSlots is the number of operations in flight; 0 means DefaultSlots.
	NumSlots int
	// NumBytes is the size of all slots. On the CPU it is address space, and 0 means: sized
	// by the first dispatch, which later ones must fit. On CUDA it is memory of the device,
	// and must be given; see layout.SizeHint.
	NumBytes int64
	// Deterministic puts the rows of an expert in order of their ranks, for
	// one more exchange of words per dispatch (on CUDA another launch, too). On the CPU a
	// dispatch is then sent only once all ranks have begun it: one thread cannot drive
	// several ranks. A dispatch that is cancelled may leave a hole, as a lost rank does.
	Deterministic bool
	// DebugFill overwrites memory with 0xff (NaN in every dtype): on the CPU when it is
	// released, on CUDA a slot's rows and expert outputs before any rank writes there. A
	// view of an earlier operation shows it, and on CUDA so do rows that no rank has written.
	DebugFill bool
	// Joining: the group is already running. Calls work after Install.
	Joining bool
	// NoRecord turns the recording of operations off: no statistics, no trace, no events
	// of slow ranks. Events of lost ranks are recorded all the same.
	NoRecord bool
	// SlowAfter is how long a wait on a rank may last before it becomes an
	// event; 0 means DefaultSlowAfter, negative: it never does.
	SlowAfter time.Duration
	// SpinFor is how long a wait on the CPU stays awake before it sleeps: it spins for
	// the first 2 µs and then yields. 0: as measured; negative: it sleeps at once.
	SpinFor time.Duration
	// EventCount is raised by one with every event, if it is given.
	EventCount *atomic.Uint64
}

// Check fills in defaults and checks what both engines check. slots is how many the
// engine can have.
func (c *Config) Check(slots limits.Range) error {
	if c.NumSlots == 0 {
		c.NumSlots = DefaultSlots
	}
	if c.SlowAfter == 0 {
		c.SlowAfter = DefaultSlowAfter
	}
	if c.SlowAfter < 0 {
		c.SlowAfter = math.MaxInt64
	}
	if err := InRange(slots, c.NumSlots); err != nil {
		return err
	}
	if err := limits.NumBytes.CheckAs("num_ep_buffer_bytes", c.NumBytes); err != nil {
		return Invalid("%s", err)
	}
	return nil
}

// LeastBytes is the least NumBytes that makes slots.
func (c *Config) LeastBytes() int64 { return int64(c.NumSlots) * layout.RegionBytes }

// agreed names what AppendAgreed encodes.
var agreed = [...]string{"num_slots", "num_ep_buffer_bytes", "deterministic"}

// AgreedBytes is how long that is, and DeterministicOff where one of the numbers is.
const (
	AgreedBytes      = 8 * len(agreed)
	DeterministicOff = AgreedBytes - 8
)

// AppendAgreed encodes what ranks must agree on.
func (c *Config) AppendAgreed(out []byte) []byte {
	out = binary.LittleEndian.AppendUint64(out, uint64(c.NumSlots))
	out = binary.LittleEndian.AppendUint64(out, uint64(c.NumBytes))
	deterministic := uint64(0)
	if c.Deterministic {
		deterministic = 1
	}
	return binary.LittleEndian.AppendUint64(out, deterministic)
}

// Agree compares what AppendAgreed and Standing.Append have put into each rank's parameters,
// at two offsets, with those of rank self. It returns the Standing with which the ranks' common
// epoch begins. A nil entry is an absent rank.
func Agree(self int, all [][]byte, agreedOff, standingOff int) (next Standing, err error) {
	for rank, params := range all {
		if params == nil {
			continue
		}
		if err := compareAgreed(self, rank, all[self][agreedOff:], params[agreedOff:]); err != nil {
			return next, err
		}
		if err := next.include(rank, params[standingOff:]); err != nil {
			return next, err
		}
	}
	next.Epoch++
	return next, nil
}

func compareAgreed(self, rank int, mine, theirs []byte) error {
	for i, name := range agreed {
		a, b := binary.LittleEndian.Uint64(mine[8*i:]), binary.LittleEndian.Uint64(theirs[8*i:])
		if a != b {
			return fmt.Errorf("%w: %s is %d on rank %d and %d on rank %d", ErrMismatch, name, b, rank, a, self)
		}
	}
	return nil
}
