package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/shm"
)

// connectTimeout applies when the caller gives none.
const connectTimeout = 60 * time.Second

// buffer is a mw_buffer_t: first a listener that peers can meet, then, once
// connected, an ep.Buffer.
type buffer struct {
	id       uint64
	cfg      ep.Config
	width    int
	meta     []byte
	broken   atomic.Pointer[error]
	ep       atomic.Pointer[ep.Buffer]
	memories memories

	mu        sync.Mutex // guards what follows
	listener  *shm.Listener
	connected bool // connect was called
	closed    bool
}

var buffers = newTable[*buffer]("buffer")

func (b *buffer) poisoned() error {
	if p := b.broken.Load(); p != nil {
		return *p
	}
	return nil
}

func (b *buffer) poison(err error) {
	b.broken.CompareAndSwap(nil, &err)
	if e := b.ep.Load(); e != nil {
		e.Abandon(err)
	}
}

// core returns the buffer's core, once there is one.
func (b *buffer) core() (*ep.Buffer, error) {
	if e := b.ep.Load(); e != nil {
		return e, nil
	}
	return nil, invalid("buffer %d is not connected yet: call mw_buffer_connect first", b.id)
}

func shapeOf(s *C.mw_shape_t) layout.Shape {
	return layout.Shape{
		MaxTokens: int64(s.num_max_tokens_per_rank), Hidden: int64(s.hidden),
		NumRanks: int64(s.num_ranks), NumExperts: int64(s.num_experts),
	}
}

//export mwiSizeHint
func mwiSizeHint(shape *C.mw_shape_t, numBytes *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		slots := int64(shape.num_slots)
		if slots == 0 {
			slots = ep.DefaultSlots
		}
		if err := inRange("num_slots", slots, 1, layout.MaxSlots); err != nil {
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

func configOf(c *C.mw_config_t) (ep.Config, error) {
	const known = C.MW_CONFIG_DEBUG_FILL | C.MW_CONFIG_NO_RECORD | C.MW_CONFIG_TEST_CORRUPT_COMBINE
	if c.flags&^known != 0 {
		return ep.Config{}, invalid("config->flags is %#x, allowed bits %#x", uint32(c.flags), uint32(known))
	}
	if c.num_bytes > 1<<62 {
		return ep.Config{}, invalid("config->num_bytes is %d, allowed up to 2^62", uint64(c.num_bytes))
	}
	if c.num_ranks < 1 || c.num_ranks > layout.MaxRanks {
		return ep.Config{}, invalid("config->num_ranks is %d, allowed 1 to %d", uint32(c.num_ranks), layout.MaxRanks)
	}
	if c.rank >= c.num_ranks {
		return ep.Config{}, invalid("config->rank is %d, allowed 0 to %d", uint32(c.rank), uint32(c.num_ranks)-1)
	}
	return ep.Config{
		NumSlots: int(c.num_slots), NumBytes: int64(c.num_bytes),
		DebugFill:      c.flags&C.MW_CONFIG_DEBUG_FILL != 0,
		NoRecord:       c.flags&C.MW_CONFIG_NO_RECORD != 0,
		EventCount:     eventCount(),
		CorruptCombine: c.flags&C.MW_CONFIG_TEST_CORRUPT_COMBINE != 0,
	}, nil
}

//export mwiBufferCreate
func mwiBufferCreate(config *C.mw_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		cfg, err := configOf(config)
		if err != nil {
			return err
		}
		params, err := cfg.Params()
		if err != nil {
			return err
		}
		if _, err := cpu.New(int(config.vector_width)); err != nil {
			return invalid("config->vector_width: %s", err)
		}
		ensureProcs()
		l, err := shm.Open(shm.Config{
			Rank: int(config.rank), NumRanks: int(config.num_ranks),
			ControlBytes: layout.ControlBytes, ABIVersion: C.MW_ABI_VERSION, Params: params,
		})
		if err != nil {
			return err
		}
		b := &buffer{cfg: cfg, width: int(config.vector_width), listener: l, meta: l.Metadata()}
		if b.id = buffers.add(b); b.id > maxBuffers {
			_, _ = buffers.take(b.id)
			_ = l.Close()
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
	return guard(b, func() error { return copyOut(b.meta, buf, size, length) })
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

//export mwiBufferConnect
func mwiBufferConnect(id uint64, all *C.mw_bytes_t, numRanks uint32, timeoutUs int64) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(b, func() error {
		timeout, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		if timeout < 0 {
			timeout = connectTimeout
		}
		if timeout == 0 {
			return invalid("timeout_us is 0, allowed -1 (%v), 1 and more", connectTimeout)
		}
		if want := b.listener.Info().NumRanks; int(numRanks) != want {
			return invalid("num_ranks is %d, the buffer was created for %d", numRanks, want)
		}
		metas, err := copyMetadata(unsafe.Slice(all, numRanks))
		if err != nil {
			return err
		}
		return b.connect(metas, timeout)
	})
}

func copyMetadata(all []C.mw_bytes_t) ([][]byte, error) {
	metas := make([][]byte, len(all))
	for r, m := range all {
		if err := inRange(fmt.Sprintf("all[%d].num_bytes", r), int64(m.num_bytes), 0, 1<<20); err != nil {
			return nil, err
		}
		data, err := view[byte](fmt.Sprintf("all[%d]", r), uint64(m.address), int64(m.num_bytes))
		if err != nil {
			return nil, err
		}
		metas[r] = append([]byte(nil), data...)
	}
	return metas, nil
}

// connect happens once. The listener stays where close finds it, so that
// closing ends a connect in another thread.
func (b *buffer) connect(metas [][]byte, timeout time.Duration) error {
	b.mu.Lock()
	again := b.connected || b.closed
	b.connected = true
	b.mu.Unlock()
	if again {
		return invalid("buffer %d was connected before (or closed meanwhile)", b.id)
	}
	if err := checkParams(b.listener.Info().Rank, metas); err != nil {
		_ = b.listener.Close()
		return err
	}
	dom, err := b.listener.Connect(metas, timeout)
	if err != nil {
		_ = b.listener.Close()
		return b.unlessClosed(err)
	}
	kern, err := cpu.New(b.width)
	if err != nil {
		_ = dom.Close()
		return err
	}
	e, err := ep.New(dom, kern, b.cfg)
	if err != nil {
		_ = dom.Close()
		return err
	}
	return b.install(e)
}

// unlessClosed prefers to say that the buffer was closed, if it was.
func (b *buffer) unlessClosed(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return fmt.Errorf("%w: buffer %d was closed while it connected", ep.ErrClosed, b.id)
	}
	return err
}

// install publishes the core unless the buffer was closed meanwhile.
func (b *buffer) install(e *ep.Buffer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = e.Close()
		return fmt.Errorf("%w: buffer %d was closed while it connected", ep.ErrClosed, b.id)
	}
	b.ep.Store(e)
	return nil
}

// checkParams compares what core/ep needs ranks to agree on. Metadata that
// cannot be read is left to Connect, which says what is wrong with it.
func checkParams(rank int, metas [][]byte) error {
	params := make([][]byte, len(metas))
	for r, m := range metas {
		info, err := shm.ParseMetadata(m)
		if err != nil {
			return fmt.Errorf("metadata of rank %d: %w", r, err)
		}
		params[r] = info.Params
	}
	if rank >= len(params) {
		return invalid("num_ranks is %d, and this is rank %d", len(params), rank)
	}
	return ep.CheckParams(rank, params)
}

//export mwiBufferClose
func mwiBufferClose(id uint64) C.mw_status_t {
	b, err := buffers.take(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, b.close)
}

func (b *buffer) close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err := b.listener.Close() // ends a connect; after one, does nothing
	if e := b.ep.Load(); e != nil {
		b.memories.forget()
		err = e.Close()
	}
	return err
}
