package shmem

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// table is what a transport shows its peers: which memories there are, and
// what may be reached in them. It never reads there itself.
type table struct {
	shared *shared

	mu       sync.Mutex
	memories [MaxMemories]published
	regions  [MaxRegions]bool
}

// published is memory with the number under which this transport's peers know
// it.
type published struct {
	memory  *Memory
	id      uint64
	numUses int // regions
}

func newTable() (*table, error) {
	s, err := newShared("moewire-table", tableBytes)
	if err != nil {
		return nil, err
	}
	sys.Word(s.Bytes(), tableMagicOff).Store(tableMagic)
	return &table{shared: s}, nil
}

func (t *table) word(off int64) *atomic.Uint64 { return sys.Word(t.shared.Bytes(), off) }

// random returns a number that was never used. Its lowest bits are a slot of a table of
// n, a power of two.
func random(slot, n int) uint64 {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if x := binary.LittleEndian.Uint64(b[:])&^uint64(n-1) | uint64(slot); x > MaxRegions {
			return x // not one of those that mean something else
		}
	}
}

// publish returns the number of a memory and counts a use of it.
func (t *table) publish(m *Memory) (id uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := -1
	for slot := range t.memories {
		switch p := &t.memories[slot]; {
		case p.memory == m:
			p.numUses++
			return p.id, nil
		case p.memory == nil && free < 0:
			free = slot
		}
	}
	if free < 0 {
		return 0, fmt.Errorf("register: parts of %d memories, the most: %w", MaxMemories, transport.ErrNoResource)
	}
	p := published{m, random(free, MaxMemories), 1}
	t.memories[free] = p
	t.word(tableMemoriesOff + 8*int64(free)).Store(p.id)
	return p.id, nil
}

// retract ends a use, and tells whether it was the memory's last.
func (t *table) retract(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := id % MaxMemories
	p := &t.memories[slot]
	if p.numUses--; p.numUses > 0 {
		return false
	}
	*p = published{}
	t.word(tableMemoriesOff + 8*int64(slot)).Store(0)
	t.word(tableVersionOff).Add(1)
	return true
}

// withDescriptor calls f with the descriptor of a memory that a peer asks for, nil if
// there is none. It stays open meanwhile.
func (t *table) withDescriptor(id uint64, f func(*sys.FD) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := &t.memories[id%MaxMemories]; p.memory != nil && p.id == id {
		return f(p.memory.fd)
	}
	return f(nil)
}

// show lets peers reach a part of a memory, and returns the key.
func (t *table) show(memoryID uint64, off, size int64, access transport.Access) (key uint64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for slot := range t.regions {
		if t.regions[slot] {
			continue
		}
		t.regions[slot] = true
		key := random(slot, MaxRegions)
		at := tableRegionsOff + regionBytes*int64(slot)
		t.word(at + regionMemoryOff).Store(memoryID)
		t.word(at + regionOff).Store(uint64(off))
		t.word(at + regionSizeOff).Store(uint64(size))
		t.word(at + regionAccessOff).Store(uint64(access))
		t.word(at + regionKeyOff).Store(key) // last: a reader that sees it has the rest
		return key, nil
	}
	return 0, fmt.Errorf("register: %d regions that peers may reach, the most: %w", MaxRegions, transport.ErrNoResource)
}

// hide takes a region back. Peers may be busy with it.
func (t *table) hide(key uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := key % MaxRegions
	t.word(tableRegionsOff + regionBytes*int64(slot) + regionKeyOff).Store(0)
	t.regions[slot] = false
}
