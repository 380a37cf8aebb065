package cuda

import (
	"encoding/binary"
	"fmt"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/limits"
)

// Bounds that apply when a Config leaves them 0.
const (
	DefaultMaxSelections = 1 << 18
	DefaultMaxExperts    = 1024
	DefaultDrainTimeout  = 10 * time.Second
	// DefaultEndAfter is for callers that want EndAfter without a time of their own. A rank
	// that runs notices within milliseconds that it is out, and says it is quiesced when
	// its device has done what was launched. DefaultEndAfter has to be well below the 2 s
	// (MW_HOST_GRACE_NS) that the device waits beyond a call's timeout for memory that the
	// rank may write to. After those the buffer ends with an error.
	DefaultEndAfter = 500 * time.Millisecond
)

// Config says how a buffer is made: that of any engine, with at most protocol.MaxSlotsCUDA
// slots and without SpinFor, and what is each rank's own choice on CUDA.
type Config struct {
	ep.Config
	// MaxSelections bounds T*K of a dispatch, MaxExperts its E; 0 means the
	// defaults. Each slot has 16 bytes per selection and 24 per expert.
	MaxSelections, MaxExperts int
	// Placement is what the ranks have agreed on (AgreePlacement). Links are the device's,
	// by which they agree. With PlacementOpen there is no agreement: Connect and Install
	// refuse ranks that lack native atomics between their device and this one's, unless
	// Deterministic.
	Placement Placement
	Links     device.Links
	// DrainTimeout bounds how long Prepare and Close wait until the device has
	// done what was launched; 0 means DefaultDrainTimeout.
	DrainTimeout time.Duration
	// EndAfter is how long after a rank of this host was taken out its process is killed,
	// if it has neither ended nor said that it writes nothing more. 0: it is not killed,
	// and a call that needs memory that the rank may write to waits for it, until the
	// buffer ends with an error, 2 s beyond the call's timeout. Three kinds of processes
	// are never killed: that of a rank that left by Close or Prepare, one with another rank
	// of this buffer that was not taken out, and any process by a rank that is out itself.
	EndAfter time.Duration
}

func (c *Config) check() error {
	if c.MaxSelections == 0 {
		c.MaxSelections = DefaultMaxSelections
	}
	if c.MaxExperts == 0 {
		c.MaxExperts = DefaultMaxExperts
	}
	if c.DrainTimeout == 0 {
		c.DrainTimeout = DefaultDrainTimeout
	}
	if err := c.Config.Check(limits.NumSlotsCUDA); err != nil {
		return err
	}
	if err := ep.InRange(limits.MaxSelections, c.MaxSelections); err != nil {
		return err
	}
	if err := ep.InRange(limits.MaxExperts, c.MaxExperts); err != nil {
		return err
	}
	least := c.LeastBytes()
	switch {
	case c.NumBytes < least:
		return ep.Invalid("num_ep_buffer_bytes is %d, allowed at least %d for %d slots on CUDA", c.NumBytes, least, c.NumSlots)
	case c.DrainTimeout < 0:
		return ep.Invalid("drain_timeout is %v, allowed 0 (the default) and more", c.DrainTimeout)
	case c.EndAfter < 0:
		return ep.Invalid("end_after is %v, allowed 0 (never) and more", c.EndAfter)
	case c.Placement > lastPlacement:
		return ep.Invalid("placement is %d, allowed 0 to %d", c.Placement, lastPlacement)
	}
	return nil
}

// engine is the shape of the rank's memory.
func (c *Config) engine(rank, ranks int) device.Config {
	return device.Config{
		Rank: rank, NumRanks: ranks, NumSlots: c.NumSlots,
		SlabBytes:     layout.SlabBytes(c.NumBytes, int64(c.NumSlots)),
		MaxSelections: c.MaxSelections, MaxExperts: c.MaxExperts, NoCounters: c.NoRecord, DebugFill: c.DebugFill,
	}
}

// paramsTag comes first in Params: no buffer on the CPU has it there.
const paramsTag = "MWCUDA02"

// After it come what all engines agree on, the order and the links, and the standing last.
const (
	agreedOff        = len(paramsTag)
	deterministicOff = agreedOff + ep.DeterministicOff
	placementOff     = agreedOff + ep.AgreedBytes
	deviceOff        = placementOff + 8
	nativeOff        = deviceOff + 8
	standingOff      = nativeOff + 8*maxNative
	paramsBytes      = standingOff + ep.StandingBytes
)

// maxNative is how many other devices of a host Params names: it has room for no more.
// Nothing is known of the rest.
const maxNative = 16

// Params encodes what ranks must agree on and where this one stands, for the
// metadata of a rendezvous (at most 256 bytes).
func (c Config) Params(st ep.Standing) ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	out := c.AppendAgreed([]byte(paramsTag))
	out = le.AppendUint64(out, uint64(c.Placement))
	out = le.AppendUint64(out, c.Links.Device)
	for i := range maxNative {
		native := uint64(0)
		if i < len(c.Links.Native) {
			native = c.Links.Native[i]
		}
		out = le.AppendUint64(out, native)
	}
	return st.Append(out), nil
}

// CheckParams compares every rank's Params with those of rank self. It returns the
// standing with which the epoch begins that they make together. nil: absent. A rank
// with a buffer on the CPU is a mismatch.
func CheckParams(self int, all [][]byte) (next ep.Standing, err error) {
	if self < 0 || self >= len(all) || !isParams(all[self]) {
		return next, ep.Invalid("the parameters of rank %d are missing or not of a buffer on CUDA", self)
	}
	for rank, other := range all {
		if other != nil && !isParams(other) {
			return next, fmt.Errorf("%w: rank %d is not on CUDA, or of another version", ep.ErrMismatch, rank)
		}
	}
	return ep.Agree(self, all, agreedOff, standingOff)
}

func isParams(b []byte) bool { return len(b) == paramsBytes && string(b[:len(paramsTag)]) == paramsTag }
