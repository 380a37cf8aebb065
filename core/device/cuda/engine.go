package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/limits"
)

// Config is the shape of an Engine. All but Rank, NoCounters, DebugFill and Loads are equal
// on all ranks.
type Config struct {
	Rank, NumRanks, NumSlots int
	SlabBytes                int64 // of one slot, a multiple of layout.RegionBytes
	// MaxSelections bounds T*K, MaxExperts E.
	MaxSelections, MaxExperts int
	// NoCounters: the device counts nothing.
	NoCounters bool
	// DebugFill: a dispatch fills its slot's rows and outputs with 0xff before it
	// opens the slot, when no rank reads the earlier ones any more.
	DebugFill bool
	// Loads forces a variant of the kernels that move rows, for benchmarks; 0 chooses
	// by shape.
	Loads Loads
}

// localExperts bounds L.
func (c *Config) localExperts() int { return (c.MaxExperts + c.NumRanks - 1) / c.NumRanks }

func (c *Config) check() error {
	if err := limits.NumRanks.Check(int64(c.NumRanks)); err != nil {
		return err
	}
	if err := limits.NumSlotsCUDA.Check(int64(c.NumSlots)); err != nil {
		return err
	}
	switch {
	case c.Rank < 0 || c.Rank >= c.NumRanks:
		return fmt.Errorf("rank is %d of %d", c.Rank, c.NumRanks)
	case c.SlabBytes < layout.HeaderBytes:
		return fmt.Errorf("a slab has %d bytes, %d are needed", c.SlabBytes, layout.HeaderBytes)
	case c.Loads < ByShape || c.Loads > Deep:
		return fmt.Errorf("loads is %d, %d to %d are possible", c.Loads, ByShape, Deep)
	case c.MaxSelections < 0 || c.MaxExperts < 1:
		return fmt.Errorf("%d selections and %d experts", c.MaxSelections, c.MaxExperts)
	}
	return nil
}

// Engine is one rank's side of the exchange on one device. Calls only launch;
// they are for one goroutine at a time.
type Engine struct {
	d   *Device
	cfg Config
	// calls makes the launches.
	calls    *libcuda.Caller
	shared   *Memory // arena, slabs: other ranks map it
	private  *Memory
	host     *HostMemory
	counts   *HostMemory // the counters; nil: nothing is counted
	at       scratch
	base     common
	args     params
	threads  threads
	remote   *remoteSide              // nil: no rank is reached by messages
	epoch    uint64                   // that this rank has joined
	timedOut [rankset.MaxRanks]uint64 // the waits that TakeTimedOut has told of
}

// params are the blocks of parameters of launches, one of each.
type params struct {
	plan    planArgs
	place   placeArgs
	receive receiveArgs
	publish publishArgs
	wait    waitArgs
	reduce  reduceArgs
	move    moveArgs
	sum     sumArgs
}

// slabOff is where slabs begin in shared memory.
const slabOff = (int64(unsafe.Sizeof(arena{})) + layout.RegionBytes - 1) / layout.RegionBytes * layout.RegionBytes

// NewEngine allocates a rank's memory. SetPeer and SetMembers come next.
func NewEngine(d *Device, cfg Config) (*Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	e := &Engine{d: d, cfg: cfg, calls: d.lib.NewCaller(), threads: usual}
	if err := e.allocate(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	private, host := e.private.Address(), uint64(e.host.addr)
	e.base = common{
		State: private, Bases: private + uint64(e.at.bases),
		HostControl: host, Report: host + uint64(unsafe.Sizeof(hostControl{})),
		SlabOff: slabOff, SlabBytes: cfg.SlabBytes,
		Rank: int32(cfg.Rank), NumRanks: int32(cfg.NumRanks), NumSlots: int32(cfg.NumSlots),
	}
	if e.counts != nil {
		e.base.Counters = e.counts.Address()
	}
	if err := e.SetPeer(cfg.Rank, e.shared.Address()); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Engine) allocate() (err error) {
	if e.shared, err = e.d.AllocShared(e.cfg.SharedBytes()); err != nil {
		return err
	}
	e.at = scratchOf(&e.cfg)
	if e.private, err = e.d.Alloc(uint64(e.at.bytes)); err != nil {
		return err
	}
	if e.host, err = e.d.AllocHost(hostBytes); err != nil || e.cfg.NoCounters {
		return err
	}
	e.counts, err = e.d.AllocHost(countersBytes + 8*uint64(e.cfg.localExperts()))
	return err
}

// Close frees the memory. The caller has seen to it that no kernel of this or
// another rank uses it any more. Idempotent.
func (e *Engine) Close() error {
	var all []error
	if e.remote != nil {
		all = append(all, e.remote.close())
	}
	if e.shared != nil {
		all = append(all, e.shared.Close())
	}
	if e.private != nil {
		all = append(all, e.private.Close())
	}
	if e.host != nil {
		all = append(all, e.host.Close())
	}
	if e.counts != nil {
		all = append(all, e.counts.Close())
	}
	return errors.Join(all...)
}

// Shared is where this rank's shared memory begins, for ranks of the same
// process.
func (e *Engine) Shared() uint64 { return e.shared.Address() }

// Memory is what other ranks map, of SharedBytes. It stays the engine's.
func (e *Engine) Memory() *Memory { return e.shared }

// SharedBytes is the size of each rank's shared memory, but for rounding up.
func (c *Config) SharedBytes() uint64 { return uint64(slabOff + int64(c.NumSlots)*c.SlabBytes) }

// Counts and Ranges are room for the results of a slot's dispatch: int32 [L]
// and int64 [L, R].
func (e *Engine) Counts(slot int) uint64 { return e.of(int32(slot), e.at.received) }

// Ranges is the other one.
func (e *Engine) Ranges(slot int) uint64 { return e.of(int32(slot), e.at.ranges) }

// Slab is where a slot's slab begins.
func (e *Engine) Slab(slot int) uint64 {
	return e.shared.Address() + uint64(slabOff+int64(slot)*e.cfg.SlabBytes)
}

// SetPeer says where a rank's shared memory stands in this address space. It
// waits for the copy; captured graphs see it at their next replay.
func (e *Engine) SetPeer(rank int, shared uint64) error {
	return e.copyIn(e.private.Address()+uint64(e.at.bases)+uint64(rank)*8, []uint64{shared})
}
