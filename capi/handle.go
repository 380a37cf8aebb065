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

// restore puts a taken object back under its id.
func (t *table[T]) restore(id uint64, v T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[id] = v
}

func (t *table[T]) missing(id uint64) error {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if id != 0 && id <= t.last {
		return fmt.Errorf("%w: %s %d was closed", errHandle, t.name, id)
	}
	return fmt.Errorf("%w: there never was a %s %d", errHandle, t.name, id)
}

// A handle's id has the buffer's number in the high bits, and the operation's number plus
// one in the low bits. So a handle finds its buffer, and a handle of another buffer is
// noticed.
const (
	opBits     = 44
	maxBuffers = 1<<(64-opBits) - 1
)

func packHandle(buffer, op uint64) uint64 { return buffer<<opBits | (op + 1) }

func unpackHandle(id uint64) (buffer, op uint64, err error) {
	buffer, op = id>>opBits, id&(1<<opBits-1)
	if buffer == 0 || op == 0 {
		return 0, 0, fmt.Errorf("%w: there never was a handle %d", errHandle, id)
	}
	return buffer, op - 1, nil
}
