package server

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/store/tag"
)

// Sentinels.
var (
	ErrExists     = errors.New("the block is there already")
	ErrConflict   = errors.New("the key has another block")
	ErrFull       = errors.New("no room")
	ErrTooLarge   = errors.New("the block is too large")
	ErrWouldBlock = errors.New("too much is being written")
	ErrClosed     = errors.New("the store is closed")
	ErrNamespaces = errors.New("too many namespaces")
)

// NS is the number of a namespace.
type NS = uint16

// Allocation asks for room for a block.
type Allocation struct {
	NS          NS
	Key, Parent []byte
	Bytes       int64
	Tag         tag.Tag
}

// Writing is room for a block.
type Writing interface {
	Buffer() []byte
	Commit() error
	Abort()
}

// Leased is a block that is there as long as it is leased.
type Leased interface {
	Bytes() int64
	Tag() tag.Tag
	Data() []byte
	Read(off int64, p []byte) error
	Release()
}

// Lease is a block or none.
type Lease struct{ Leased }

// Held reports whether the lease has a block.
func (l *Lease) Held() bool { return l.Leased != nil }

// Store is the engine, as far as a server uses it.
type Store interface {
	Namespace(digest [32]byte, label string) (NS, error)
	MaxBlockBytes(keyBytes int) int64
	Exists(ns NS, keys [][]byte, found []bool) (consecutive int)
	Allocate(a Allocation) (Writing, error)
	Acquire(ns NS, keys [][]byte, leases []Lease) (hits int)
	Delete(ns NS, keys [][]byte, deleted []bool) (num int)
	Touch(ns NS, keys [][]byte) (num int)
	Pin(ns NS, keys [][]byte, until time.Time, pinned []bool) (num int)
	List(ns NS, prefix []byte, cursor uint64, n int) (keys [][]byte, next uint64)
	Flush(deadline time.Time) error
	Bad(ns NS, key []byte)
}

// Release ends the lease; the zero Lease has nothing to release.
func (l *Lease) Release() {
	if l.Leased != nil {
		l.Leased.Release()
	}
}
