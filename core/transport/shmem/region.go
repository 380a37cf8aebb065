package shmem

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// grace is how long a Close waits for peers that are in the middle of a copy:
// each copies for less than a millisecond, unless it was stopped.
const grace = time.Second

// Region is a registered part of a Memory.
type Region struct {
	t        *Transport
	memory   *Memory
	mem      []byte
	memoryID uint64
	off      int64 // in the memory
	shown    bool  // in the table
	remote   transport.RemoteRegion

	numUses atomic.Int64 // pieces of requests with completions that were not polled; -1 once closing
	mu      sync.Mutex   // of Close
	hidden  bool
	closed  bool
}

func newRegion(t *Transport, mem []byte, access transport.Access) (*Region, error) {
	m, off, err := hold(mem)
	if err != nil {
		return nil, err
	}
	r := &Region{t: t, memory: m, mem: mem[:len(mem):len(mem)], off: off}
	if r.memoryID, err = t.table.publish(m); err != nil {
		m.releaseRegion()
		return nil, err
	}
	r.shown = access != 0
	key := random(0, 1)
	if r.shown {
		key, err = t.table.show(r.memoryID, off, int64(len(mem)), access)
	}
	if err != nil {
		t.table.retract(r.memoryID)
		m.releaseRegion()
		return nil, err
	}
	r.remote = transport.RemoteRegion{Addr: uint64(off), SizeBytes: uint64(len(mem)), Key: key}
	return r, nil
}

// Bytes is the memory.
func (r *Region) Bytes() []byte { return r.mem }

// Remote is what a peer needs. Addr is the offset in the Memory.
func (r *Region) Remote() transport.RemoteRegion { return r.remote }

// use keeps the region from being closed; false if it is.
func (r *Region) use() bool {
	for {
		n := r.numUses.Load()
		if n < 0 {
			return false
		}
		if r.numUses.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (r *Region) unuse() { r.numUses.Add(-1) }

// Close ends the registration: no access begins after it was called, and none is in
// progress when it has returned nil. It also gives ErrBusy when a peer is still in the
// middle of an access after a second (a process that was stopped). The memory is in use
// then, and Close has to be called again.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if !r.hidden && !r.numUses.CompareAndSwap(0, -1) {
		return fmt.Errorf("close: %d pieces of requests: %w", r.numUses.Load(), transport.ErrBusy)
	}
	if !r.hidden && r.shown {
		r.t.table.hide(r.remote.Key)
	}
	r.hidden = true
	if r.shown && !within(grace, func() bool { return !r.t.isTouched(r.remote.Key) }) {
		return fmt.Errorf("close: a peer is in the middle of an access: %w", transport.ErrBusy)
	}
	r.closed = true
	r.end()
	return nil
}

func (r *Region) end() {
	if r.t.table.retract(r.memoryID) {
		r.t.ringAll() // for peers to unmap it
	}
	r.memory.releaseRegion()
	r.t.numRegions.Add(-1)
}

// within waits until something is the case.
func within(d time.Duration, is func() bool) bool {
	for end := time.Now().Add(d); !is(); time.Sleep(20 * time.Microsecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}
