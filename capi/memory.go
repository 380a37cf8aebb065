package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/group/domain"
)

// memory is a mw_memory_t: one mapping, and how often C has retained it.
type memory struct {
	id  uint64
	seg domain.Retained

	mu      sync.Mutex
	retains int
	open    bool // its buffer is open
}

// tryRelease undoes one Retain. After an error, which only a device gives, nothing has
// changed.
func (mem *memory) tryRelease() error {
	if onDevice, ok := mem.seg.(interface{ TryRelease() error }); ok {
		return onDevice.TryRelease()
	}
	mem.seg.Release()
	return nil
}

var memoryTable = newTable[*memory]("memory")

// memories are the mappings that one buffer has shown to its caller.
type memories struct {
	mu     sync.Mutex
	closed bool
	all    []*memory // few: one per slot, as a rule
}

// of returns the memory of a mapping, and makes its id when it is first shown. It returns
// nil once the buffer is being closed.
func (m *memories) of(seg domain.Retained) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	for _, mem := range m.all {
		if mem.seg == seg {
			return mem
		}
	}
	mem := &memory{seg: seg, open: true}
	mem.id = memoryTable.add(mem)
	m.all = append(m.all, mem)
	return mem
}

// forget drops the ids that no caller has retained, when the buffer is closing.
func (m *memories) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, mem := range m.all {
		mem.mu.Lock()
		mem.open = false
		unused := mem.retains == 0
		mem.mu.Unlock()
		if unused {
			_, _ = memoryTable.take(mem.id)
		}
	}
	m.all, m.closed = nil, true
}

// withMemory runs f with an existing memory, under the memory's lock.
func withMemory(id uint64, f func(*memory) error) C.mw_status_t {
	return guard(nil, func() error {
		mem, err := memoryTable.get(id)
		if err != nil {
			return err
		}
		mem.mu.Lock()
		defer mem.mu.Unlock()
		return f(mem)
	})
}

//export mwiMemoryRetain
func mwiMemoryRetain(id uint64) C.mw_status_t {
	return withMemory(id, func(mem *memory) error {
		if !mem.open && mem.retains == 0 {
			return fmt.Errorf("%w: memory %d is gone with its buffer", errHandle, id)
		}
		mem.seg.Retain()
		mem.retains++
		return nil
	})
}

//export mwiMemoryRelease
func mwiMemoryRelease(id uint64) C.mw_status_t {
	return withMemory(id, func(mem *memory) error {
		if mem.retains == 0 {
			return fmt.Errorf("%w: memory %d was not retained", errHandle, id)
		}
		if err := mem.tryRelease(); err != nil {
			return err
		}
		mem.retains--
		if mem.retains == 0 && !mem.open {
			_, _ = memoryTable.take(id)
		}
		return nil
	})
}
