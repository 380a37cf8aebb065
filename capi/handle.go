package main

import (
	"fmt"
	"sync"
)

// table maps ids to objects. An id is never reused, so a stale one is an
// error and never another object.
type table[T any] struct {
	name string
	mu   sync.RWMutex
	last uint64
	m    map[uint64]T
}

func newTable[T any](name string) *table[T] {
	return &table[T]{name: name, m: make(map[uint64]T)}
}

// next returns an id for put.
func (t *table[T]) next() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	return t.last
}

// put makes an object known by an id that is its own, perhaps again.
func (t *table[T]) put(id uint64, v T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[id] = v
}

func (t *table[T]) add(v T) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.m[t.last] = v
	return t.last
}

func (t *table[T]) get(id uint64) (T, error) {
	t.mu.RLock()
	v, ok := t.m[id]
	t.mu.RUnlock()
	if !ok {
		return v, t.missing(id)
	}
	return v, nil
}

// take removes the id: of two callers only one gets the object.
func (t *table[T]) take(id uint64) (T, error) {
	t.mu.Lock()
	v, ok := t.m[id]
	delete(t.m, id)
	t.mu.Unlock()
	if !ok {
		return v, t.missing(id)
	}
	return v, nil
}

func (t *table[T]) missing(id uint64) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id != 0 && id <= t.last {
		return fmt.Errorf("%w: %s %d was closed", errHandle, t.name, id)
	}
	return fmt.Errorf("%w: there never was a %s %d", errHandle, t.name, id)
}

// A handle's id has the buffer's number in the high bits, and the node.Handle in the low
// bits. So a handle finds its buffer, and a handle of another buffer is noticed.
const (
	opBits     = 44
	maxBuffers = 1<<(64-opBits) - 1
)

func packHandle(buffer, handle uint64) uint64 { return buffer<<opBits | handle }

func unpackHandle(id uint64) (buffer, handle uint64, err error) {
	buffer, handle = id>>opBits, id&(1<<opBits-1)
	if buffer == 0 || handle == 0 {
		return 0, 0, fmt.Errorf("%w: there never was a handle %d", errHandle, id)
	}
	return buffer, handle, nil
}

// drop removes the ids of some objects.
func (t *table[T]) drop(which func(T) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, v := range t.m {
		if which(v) {
			delete(t.m, id)
		}
	}
}
