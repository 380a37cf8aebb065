package shmem

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Memory is memory that peers can map: Register takes parts of it, of any
// transport in this process, and nothing else. It has one descriptor.
type Memory struct {
	fd      *sys.FD
	mapping *sys.Mapping

	// Under processMemory's lock.
	numRegions int
	closed     bool
}

// processMemory lists all memory of this process.
var processMemory struct {
	sync.Mutex
	list []*Memory
}

// NewMemory makes zeroed memory of 1 to MaxMemoryBytes bytes. It becomes
// resident as it is touched. The caller closes it.
func NewMemory(sizeBytes int64) (*Memory, error) {
	if sizeBytes < 1 || sizeBytes > MaxMemoryBytes {
		return nil, fmt.Errorf("new memory: sizeBytes is %d, 1 to %d are allowed", sizeBytes, int64(MaxMemoryBytes))
	}
	s, err := newShared("moewire-memory", sizeBytes)
	if err != nil {
		return nil, fmt.Errorf("new memory of %d bytes: %w", sizeBytes, err)
	}
	m := &Memory{fd: s.fd, mapping: s.Mapping}
	processMemory.Lock()
	defer processMemory.Unlock()
	processMemory.list = append(processMemory.list, m)
	return m, nil
}

// Bytes is the memory. It must not be touched after Close.
func (m *Memory) Bytes() []byte { return m.mapping.Bytes() }

// Close releases the memory; peers that have mapped it do so when they next
// look. ErrBusy while regions of it are registered. Idempotent.
func (m *Memory) Close() error {
	processMemory.Lock()
	if m.numRegions > 0 {
		n := m.numRegions
		processMemory.Unlock()
		return fmt.Errorf("close memory with %d regions: %w", n, transport.ErrBusy)
	}
	m.closed = true
	processMemory.list = slices.DeleteFunc(processMemory.list, func(other *Memory) bool { return other == m })
	processMemory.Unlock()
	return errors.Join(m.mapping.Unmap(), m.fd.Close())
}

// hold finds the memory that mem is a part of, and keeps it from being closed
// until releaseRegion.
func hold(mem []byte) (m *Memory, off int64, err error) {
	processMemory.Lock()
	defer processMemory.Unlock()
	for _, m := range processMemory.list {
		if off, inside := m.mapping.Offset(mem); inside {
			m.numRegions++
			return m, off, nil
		}
	}
	return nil, 0, errors.New("register: mem is not part of memory from shmem.NewMemory, " +
		"and peers can map no other")
}

func (m *Memory) releaseRegion() {
	processMemory.Lock()
	defer processMemory.Unlock()
	m.numRegions--
}
