package main

// #include "internal.h"
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep/gpu"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/transport/cudaring"
	"github.com/moewire/moewire/core/transport/multihost"
)

// maxCodeBytes bounds the code of kernels that a caller gives.
const maxCodeBytes = 64 << 20

// onGPU is the part that only a buffer on CUDA has.
type onGPU struct {
	cfg     gpu.Config
	ordinal int
	driver  string
	given   []byte // the caller's code, in place of ours
	nvrtc   string
	memory  gpuMemory
	laters  sync.Pool // of *operation, for this buffer alone, so that o.b never changes

	mu    sync.Mutex
	dev   *cuda.Device
	code  string          // where the device's code comes from
	rings *cudaring.Rings // memory for messages to ranks of other hosts
	slots [protocol.MaxSlotsCUDA]slotUse
	order string // why the group places rows by counts; "": it was asked to, or it does not
}

// slotUse is the latest dispatch in a slot.
type slotUse struct {
	handle   gpu.Handle
	stream   uint64 // the stream of the handle's latest call
	combineX uint64
}

// gpuOf reads where rows lie. It returns nil for the CPU.
func gpuOf(c *C.mw_config_t) (*onGPU, error) {
	if err := inRange("config->device", int64(c.device), C.MW_DEVICE_CPU, C.MW_DEVICE_CUDA); err != nil {
		return nil, err
	}
	if c.device == C.MW_DEVICE_CPU {
		if c.flags&C.MW_CONFIG_KILL_FENCED != 0 {
			return nil, invalid("config->flags is %#x: MW_CONFIG_KILL_FENCED (%#x) is possible with MW_DEVICE_CUDA alone; on the CPU nobody waits for a rank that is out",
				uint32(c.flags), uint32(C.MW_CONFIG_KILL_FENCED))
		}
		if c.device_ordinal != 0 {
			return nil, invalid("config->device_ordinal is %d, allowed 0 without MW_DEVICE_CUDA", uint32(c.device_ordinal))
		}
		return nil, nil
	}
	if c.num_bytes == 0 {
		return nil, invalid("config->num_bytes is 0, allowed with MW_DEVICE_CUDA: what mw_buffer_size_hint gives")
	}
	if err := inRange("config->device_ordinal", int64(c.device_ordinal), 0, 1<<16); err != nil {
		return nil, err
	}
	g := &onGPU{ordinal: int(c.device_ordinal), cfg: gpu.Config{
		NumSlots: int(c.num_slots), NumBytes: int64(c.num_bytes), Deterministic: c.flags&C.MW_CONFIG_DETERMINISTIC != 0,
		DebugFill: c.flags&C.MW_CONFIG_DEBUG_FILL != 0,
	}}
	if c.flags&C.MW_CONFIG_KILL_FENCED != 0 {
		g.cfg.EndAfter = gpu.DefaultEndAfter
	}
	return g, g.readTexts(c)
}

func (g *onGPU) readTexts(c *C.mw_config_t) error {
	driver, err := text("config->cuda_driver", c.cuda_driver)
	if err != nil {
		return err
	}
	nvrtc, err := text("config->cuda_nvrtc", c.cuda_nvrtc)
	if err != nil {
		return err
	}
	if err := inRange("config->cuda_code.num_bytes", int64(min(uint64(c.cuda_code.num_bytes), 1<<62)), 0, maxCodeBytes); err != nil {
		return err
	}
	code, err := view[byte]("config->cuda_code", uint64(c.cuda_code.address), int64(c.cuda_code.num_bytes))
	g.driver, g.nvrtc, g.given = string(driver), string(nvrtc), append([]byte(nil), code...)
	return err
}

// open opens the device and loads the kernels. It makes the device's context
// if there is none.
func (g *onGPU) open() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dev != nil {
		return nil
	}
	dev, from, err := cuda.OpenAt(g.driver, g.ordinal, g.codeFor)
	if err != nil {
		return err
	}
	g.dev, g.code, g.rings = dev, from, cudaring.Of(dev)
	return nil
}

// use notes which dispatch has a slot now: the latest one. Its thread may come here
// before the thread of the dispatch that it has replaced.
func (g *onGPU) use(res *gpu.Result, stream uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := &g.slots[res.Slot]; res.Handle > s.handle {
		*s = slotUse{handle: res.Handle, stream: stream, combineX: res.CombineX}
	}
}

// forget clears the slots, for a new core, which numbers its handles from the first one
// again.
func (g *onGPU) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.slots = [protocol.MaxSlotsCUDA]slotUse{}
}

// of finds the dispatch of a handle; nil if its slot serves a later one.
func (g *onGPU) of(h gpu.Handle, f func(*slotUse)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.slots {
		if g.slots[i].handle == h {
			f(&g.slots[i])
			return true
		}
	}
	return false
}

// close releases the device, once its buffer is closed. If a carrier does not end its
// requests, the memory of its messages stays in use, and so does the device. close
// reports this once.
func (g *onGPU) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dev == nil {
		return nil
	}
	err := g.rings.Close()
	if errors.Is(err, cudaring.ErrInUse) {
		g.dev = nil
		return fmt.Errorf("the device stays open: %w", err)
	}
	if err != nil {
		return err
	}
	err = g.dev.Close()
	if err == nil {
		g.dev = nil
	}
	return err
}

// agree finds the order of the group's rows. A buffer that was made for an order keeps
// it.
func (g *onGPU) agree(params [][]byte, infos []multihost.Info) error {
	order, why, err := gpu.AgreePlacement(params, func(a, b int) bool { return infos[a].LocalTo(&infos[b]) })
	if err != nil {
		return err
	}
	g.cfg.Placement = order
	g.mu.Lock()
	defer g.mu.Unlock()
	if why != "" {
		why = "; rows get their places by counts, as with deterministic: " + why
	}
	g.order = why
	return nil
}

// joinGPU is join on CUDA: the memory is on the device, and the others map it.
func (b *buffer) joinGPU(l *multihost.Listener, metas [][]byte, timeout time.Duration, joining bool) error {
	until := time.Now().Add(timeout)
	dom, err := l.Connect(metas, timeout)
	if err != nil {
		return err
	}
	cfg := b.onGPU.cfg
	cfg.Joining = joining
	cfg.NoRecord, cfg.SlowAfter, cfg.EventCount = b.cfg.NoRecord, b.cfg.SlowAfter, b.cfg.EventCount
	g, err := gpu.New(dom, b.onGPU.dev, cfg)
	if err != nil {
		return errors.Join(err, dom.Close())
	}
	b.onGPU.forget()
	b.mu.Lock()
	b.cfg.Joining, b.dom = joining, dom
	b.gpu.Store(g)
	closed := b.closed
	b.mu.Unlock()
	if closed || joining {
		return nil // the buffer is closed: the thread that closes it waits for this one
	}
	if err := g.Connect(time.Until(until)); err != nil {
		b.mu.Lock()
		b.dom = nil
		b.mu.Unlock()
		return errors.Join(err, b.dropGPU()) // the next rendezvous, or close, drops the rest
	}
	return nil
}

// dropGPU closes the core of a buffer on CUDA. Nil without one.
func (b *buffer) dropGPU() error {
	g := b.gpu.Load()
	if g == nil {
		return nil
	}
	err := g.Close()
	if err == nil {
		b.gpu.CompareAndSwap(g, nil)
	}
	return err
}

// closeGPU ends a buffer on CUDA. It leaves its group now, and its memory is freed when
// no caller retains it.
func (b *buffer) closeGPU() error {
	b.memories.forget()
	if !b.onGPU.memory.close(b.freeGPU) {
		return b.freeGPU()
	}
	if g := b.gpu.Load(); g != nil {
		return g.Leave()
	}
	return nil
}

// freeGPU frees the memory and releases the device.
func (b *buffer) freeGPU() error {
	if err := b.dropGPU(); err != nil {
		return err // the device still works for this buffer
	}
	return b.onGPU.close()
}

// gpuMemory counts the users of the memory of a buffer on CUDA.
type gpuMemory struct {
	mu   sync.Mutex
	n    int
	free func() error // set once the buffer is closed
}

// Retain keeps the memory in place until Release.
func (m *gpuMemory) Retain() {
	m.mu.Lock()
	m.n++
	m.mu.Unlock()
}

// Release is TryRelease for callers that cannot handle an error.
func (m *gpuMemory) Release() { _ = m.TryRelease() }

// TryRelease undoes one Retain; the last one frees the memory of a closed buffer. After
// an error the memory is retained as before. Only one call may run at a time.
func (m *gpuMemory) TryRelease() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == 1 && m.free != nil {
		if err := m.free(); err != nil {
			return err
		}
	}
	m.n--
	return nil
}

// close marks the buffer as closed. It returns whether the memory is still in use, so
// that the last Release frees it.
func (m *gpuMemory) close(free func() error) (later bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n > 0 {
		m.free = free
	}
	return m.n > 0
}

// gpuCore returns the core of a buffer on CUDA, as long as there is one. The caller must
// not hold b.mu.
func (b *buffer) gpuCore() (*gpu.Buffer, error) {
	if g := b.gpu.Load(); g != nil {
		return g, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, b.closedError()
	}
	return nil, errUnconnected(b.id)
}

// pathWords say how memory on a device gets from rank to rank.
var pathWords = map[string]string{
	"self":    "its own memory",
	"process": "memory of the same process",
	"fd":      "memory mapped by descriptor",
	"fabric":  "memory mapped by fabric handle",
	"ipc":     "memory opened by CUDA IPC",
}

// ownWords describe a rank's path to itself.
func ownWords(noFabric error) string {
	if noFabric == nil {
		return pathWords["self"]
	}
	return pathWords["self"] + "; " + noFabric.Error()
}

// describe explains paths: for ranks that are reached through device memory, how; for
// ranks of other hosts, where the messages lie.
func (g *onGPU) describe(b *gpu.Buffer, paths []path) {
	g.mu.Lock()
	device, rings, order := fmt.Sprintf("CUDA device %d, %s", g.ordinal, g.code), g.rings, g.order
	g.mu.Unlock()
	for r := range paths {
		how := b.Path(r)
		switch how {
		case "":
			continue
		case "messages":
			paths[r].Why = remoteWords(paths[r], rings)
			continue
		}
		paths[r] = path{Rank: r, Carrier: "cuda", Device: device, Why: pathWords[how] + order}
		if how == "self" {
			paths[r].Carrier, paths[r].Why = how, ownWords(b.NoFabric())
		}
	}
}
