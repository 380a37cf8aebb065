package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	uatomic "go.uber.org/atomic"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/multihost"
	"github.com/moewire/moewire/core/transport/shm"
)

// buffer is a mw_buffer_t: first a listener that peers can meet, then, once
// connected, an ep.Buffer.
type buffer struct {
	id       uint64
	cfg      ep.Config
	rows     cpu.Options
	open     multihost.Config // the configuration of the buffer's own listener
	broken   uatomic.Error
	ep       atomic.Pointer[ep.Buffer]
	onGPU    *onGPU // nil for a buffer on the CPU
	gpu      atomic.Pointer[gpu.Buffer]
	refused  refusals
	memories memories

	mu         sync.Mutex // guards the fields below
	rendezvous rendezvous
	dom        *multihost.Domain // nil until connected
	closed     bool
}

var buffers = newTable[*buffer]("buffer")

func (b *buffer) poisoned() error {
	return b.broken.Load()
}

func (b *buffer) poison(err error) {
	b.broken.CompareAndSwap(nil, err)
	if e := b.ep.Load(); e != nil {
		e.Abandon(err)
	}
	if g := b.gpu.Load(); g != nil {
		g.Abandon(err)
	}
}

// core returns the buffer's core, once there is one. A buffer on CUDA has another kind of
// core: see gpuCore.
func (b *buffer) core() (*ep.Buffer, error) {
	if b.onGPU != nil {
		return nil, fmt.Errorf("%w on a buffer on CUDA", transport.ErrNotSupported)
	}
	if e := b.ep.Load(); e != nil {
		return e, nil
	}
	return nil, errUnconnected(b.id)
}

func errUnconnected(id uint64) error {
	return invalid("buffer %d is not connected yet: call mw_buffer_connect first", id)
}

func shapeOf(s *C.mw_shape_t) layout.Shape {
	return layout.Shape{
		MaxTokens: int64(s.num_max_tokens_per_rank), Hidden: int64(s.hidden),
		NumRanks: int64(s.num_ranks), NumExperts: int64(s.num_experts),
		OutputType: outputType(s.flags&C.MW_SHAPE_FP32_OUTPUTS != 0),
		Flat:       s.flags&C.MW_SHAPE_FLAT != 0, Columns: columnsOf(s),
	}
}

//export mwiSizeHint
func mwiSizeHint(shape *C.mw_shape_t, numBytes *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		if err := checkShapeFlags(shape); err != nil {
			return err
		}
		if shape.reserved != 0 {
			return invalid("shape->reserved is %d, allowed 0", uint32(shape.reserved))
		}
		slots := int64(shape.num_slots)
		if slots == 0 {
			slots = ep.DefaultSlots
		}
		if err := inRange("num_slots", slots, 1, protocol.MaxSlotsCPU); err != nil {
			return err
		}
		n, err := layout.SizeHint(shapeOf(shape), slots)
		if err != nil {
			return err
		}
		*numBytes = C.uint64_t(n)
		return nil
	})
}

func checkShapeFlags(shape *C.mw_shape_t) error {
	const known = C.MW_SHAPE_FP32_OUTPUTS | C.MW_SHAPE_FLAT
	switch {
	case shape.flags&^known != 0:
		return invalid("shape->flags is %#x, allowed bits %#x", uint32(shape.flags), known)
	case shape.flags&C.MW_SHAPE_FLAT == 0 && (shape.num_topk != 0 || shape.extra_row_bytes != [protocol.NumExtras]C.uint32_t{}):
		return invalid("num_topk and extra_row_bytes are %d and %v, allowed 0 without MW_SHAPE_FLAT", int64(shape.num_topk), shape.extra_row_bytes)
	}
	return inRange("num_topk", int64(shape.num_topk), 0, protocol.MaxTopK)
}

// maxSpin bounds how long a wait may poll.
const maxSpin = time.Second

// tuningOf checks the choices that change only times.
func tuningOf(c *C.mw_config_t) (cpu.Options, shm.Pages, error) {
	for _, n := range [...]struct {
		name      string
		v, lo, hi int64
	}{
		{"stores", int64(c.stores), C.MW_STORES_AUTO, C.MW_STORES_STREAMING},
		{"huge_pages", int64(c.huge_pages), C.MW_HUGE_PAGES_NEVER, C.MW_HUGE_PAGES_REQUIRE},
		{"numa", int64(c.numa), C.MW_NUMA_NONE, C.MW_NUMA_LOCAL},
		{"num_threads", int64(c.num_threads), 0, cpu.MaxThreads},
		{"prefetch", int64(c.prefetch), cpu.NoPrefetch, cpu.MaxPrefetch},
		{"spin_us", int64(c.spin_us), -1, maxSpin.Microseconds()},
	} {
		if err := inRange("config->"+n.name, n.v, n.lo, n.hi); err != nil {
			return cpu.Options{}, shm.Pages{}, err
		}
	}
	rows := cpu.Options{
		Width: int(c.vector_width), Stores: cpu.Stores(c.stores), Prefetch: int(c.prefetch), Threads: int(c.num_threads),
	}
	if err := rows.Check(); err != nil {
		return rows, shm.Pages{}, invalid("config->%s", err)
	}
	return rows, shm.Pages{Huge: shm.HugePages(c.huge_pages), Local: c.numa == C.MW_NUMA_LOCAL}, nil
}

func configOf(c *C.mw_config_t) (ep.Config, error) {
	const known = C.MW_CONFIG_DEBUG_FILL | C.MW_CONFIG_NO_RECORD | C.MW_CONFIG_DETERMINISTIC | C.MW_CONFIG_RDMA_DC |
		C.MW_CONFIG_KILL_FENCED
	if c.flags&^known != 0 {
		return ep.Config{}, invalid("config->flags is %#x, allowed bits %#x", uint32(c.flags), uint32(known))
	}
	if c.num_bytes > 1<<62 {
		return ep.Config{}, invalid("config->num_bytes is %d, allowed up to 2^62", uint64(c.num_bytes))
	}
	if c.num_ranks < 1 || c.num_ranks > rankset.MaxRanks {
		return ep.Config{}, invalid("config->num_ranks is %d, allowed 1 to %d", uint32(c.num_ranks), rankset.MaxRanks)
	}
	if c.rank >= c.num_ranks {
		return ep.Config{}, invalid("config->rank is %d, allowed 0 to %d", uint32(c.rank), uint32(c.num_ranks)-1)
	}
	slow, err := micros("config->slow_after_us", int64(c.slow_after_us))
	if err != nil {
		return ep.Config{}, err
	}
	return ep.Config{
		NumSlots: int(c.num_slots), NumBytes: int64(c.num_bytes),
		Deterministic: c.flags&C.MW_CONFIG_DETERMINISTIC != 0,
		DebugFill:     c.flags&C.MW_CONFIG_DEBUG_FILL != 0,
		NoRecord:      c.flags&C.MW_CONFIG_NO_RECORD != 0,
		SlowAfter:     slow,
		EventCount:    eventCount(),
		SpinFor:       time.Duration(c.spin_us) * time.Microsecond,
	}, nil
}

//export mwiBufferCreate
func mwiBufferCreate(config *C.mw_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		cfg, err := configOf(config)
		if err != nil {
			return err
		}
		onGPU, err := gpuOf(config)
		if err != nil {
			return err
		}
		b := &buffer{cfg: cfg, onGPU: onGPU}
		params, err := b.params(ep.Standing{})
		if err != nil {
			return err
		}
		rows, pages, err := tuningOf(config)
		if err != nil {
			return err
		}
		open, err := reachOf(config)
		if err != nil {
			return err
		}
		open.Shm = shm.Config{
			Rank: int(config.rank), NumRanks: int(config.num_ranks),
			ControlBytes: layout.ControlBytes, ABIVersion: C.MW_ABI_VERSION, Params: params, Pages: pages,
		}
		ensureProcs()
		b.rows, b.open = rows, open
		if err := b.openGPU(); err != nil {
			b.wipeKeys()
			return err
		}
		b.watch()
		if err := b.listen(); err != nil {
			b.wipeKeys()
			return b.given(err)
		}
		if b.id = buffers.add(b); b.id > maxBuffers {
			_, _ = buffers.take(b.id)
			_ = b.close()
			return invalid("this process has made %d buffers, and handles have no room for more", maxBuffers)
		}
		*id = C.uint64_t(b.id)
		return nil
	})
}

//export mwiBufferMetadata
func mwiBufferMetadata(id uint64, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error { return copyOut(b.metadata(), buf, size, length) })
}

// copyOut writes data and its length, or only the length if buf is NULL.
func copyOut(data []byte, buf unsafe.Pointer, size uint64, length *C.uint64_t) error {
	if buf != nil && size < uint64(len(data)) {
		*length = C.uint64_t(len(data))
		return invalid("cap is %d, needed %d", size, len(data))
	}
	if buf != nil {
		copy(unsafe.Slice((*byte)(buf), len(data)), data)
	}
	*length = C.uint64_t(len(data))
	return nil
}

//export mwiBufferClose
func mwiBufferClose(id uint64) C.mw_status_t {
	b, err := buffers.take(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		err := b.close()
		if err != nil && b.onGPU != nil { // the device still works for this buffer: the caller closes it again
			buffers.restore(id, b)
		}
		return err
	})
}

// params are the parameters that the ranks compare when they meet.
func (b *buffer) params(st ep.Standing) ([]byte, error) {
	if b.onGPU == nil {
		return b.cfg.Params(st)
	}
	if g := b.gpu.Load(); g != nil {
		return g.Params(st)
	}
	return b.onGPU.cfg.Params(st)
}

// given returns the error of a buffer that could not be made, after it has released its
// device.
func (b *buffer) given(err error) error {
	if err != nil && b.onGPU != nil {
		err = errors.Join(err, b.onGPU.close())
	}
	return err
}

// stopConnect waits for a connect that has been told to end. It may still be making
// device memory that the caller is about to free.
func (b *buffer) stopConnect(over <-chan struct{}) {
	for {
		if g := b.gpu.Load(); g != nil {
			g.Stop()
		}
		select {
		case <-over:
			return
		case <-time.After(time.Millisecond): // the core may have been made since
		}
	}
}

func (b *buffer) close() error {
	defer b.wipeKeys()
	if g := b.gpu.Load(); g != nil {
		g.Stop() // this reaches an install that holds b.mu
	}
	b.mu.Lock()
	b.closed = true
	err := b.rendezvous.end() // this also ends a connect in another thread
	over := b.rendezvous.over
	b.mu.Unlock()
	if b.onGPU != nil {
		if over != nil {
			b.stopConnect(over)
		}
		return errors.Join(err, b.closeGPU())
	}
	if e := b.ep.Load(); e != nil {
		b.memories.forget()
		err = e.Close()
	}
	return err
}
