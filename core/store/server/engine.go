package server

import (
	"sync"
	"time"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/tag"
)

// Store is the engine, as far as a server uses it: Of, and others for tests.
type Store interface {
	TagKey() tag.Key
	// Namespace gives a namespace its number until Leave.
	Namespace(digest [32]byte, label string) (store.NS, error)
	Leave(ns store.NS)
	// SetQuotas bounds what the namespaces of each tenant take together; of one that is not named there is no bound.
	SetQuotas(quotas map[[16]byte]int64)
	// EvictOverQuotas evicts what tenants have more than that, until stop is closed.
	EvictOverQuotas(stop <-chan struct{})
	MaxBlockBytes(keyBytes int) int64
	Exists(ns store.NS, keys [][]byte, found []bool) (consecutive int)
	Allocate(a store.Allocation) (Writing, error)
	// Acquire leases blocks, by position: a zero Lease is a miss.
	Acquire(ns store.NS, keys [][]byte, leases []Lease) (hits int)
	Delete(ns store.NS, keys [][]byte, deleted []bool) (num int)
	Touch(ns store.NS, keys [][]byte) (num int)
	Pin(ns store.NS, keys [][]byte, until time.Time, pinned []bool) (num int)
	List(ns store.NS, prefix []byte, cursor uint64, n int) (keys [][]byte, next uint64)
	Flush(deadline time.Time) error
}

// Writing is room for a block, as store.Writing is.
type Writing interface {
	Buffer() []byte
	Commit() error
	Abort()
	Release() // the last call: it ends what has not ended
}

// Leased is a block that is there until its release, as that of store.Lease is.
type Leased interface {
	Bytes() int64
	Tag() tag.Tag
	Data() []byte
	Place() int64 // where it begins in the Arena, if there is one
	Read(off int64, p []byte) error
	Bad() // its bytes do not fit its tag: it is dropped, unless the key has another block by now
	Release()
}

// Lease is a block or none. Unlike a store.Lease it may be copied.
type Lease struct{ Leased }

// Held reports whether the lease has a block.
func (l *Lease) Held() bool { return l.Leased != nil }

// Release ends the lease; the zero Lease has nothing to release.
func (l *Lease) Release() {
	if l.Leased != nil {
		l.Leased.Release()
	}
}

// engine is a store.Store for a server.
type engine struct {
	*store.Store
	free [len(batchSizes)]sync.Pool
}

// Of makes the engine of a server.
func Of(s *store.Store) Store { return &engine{Store: s} }

// Namespace is that of the store.
func (e *engine) Namespace(digest [32]byte, label string) (store.NS, error) {
	return e.Store.Namespace(digest, label)
}

// Allocate is that of the store.
func (e *engine) Allocate(a store.Allocation) (Writing, error) {
	w, err := e.Store.Allocate(a)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// batchSizes are for how many leases a batch may have room: a handle holds all of its batch.
var batchSizes = [...]int{1, 32, message.MaxKeys}

// batch are leases that are not copied, and are used again when all of them were released.
type batch struct {
	engine *engine
	size   int // of batchSizes
	leases []store.Lease
	parts  []held
	mu     sync.Mutex
	live   int
}

// held is one lease of a batch.
type held struct {
	*store.Lease
	batch *batch
}

func (e *engine) batch(n int) *batch {
	size := 0
	for batchSizes[size] < n {
		size++
	}
	if b, ok := e.free[size].Get().(*batch); ok {
		return b
	}
	b := &batch{engine: e, size: size, leases: make([]store.Lease, batchSizes[size])}
	for i := range b.leases {
		b.parts = append(b.parts, held{&b.leases[i], b})
	}
	return b
}

// Acquire is that of the store.
func (e *engine) Acquire(ns store.NS, keys [][]byte, leases []Lease) (hits int) {
	b := e.batch(len(keys))
	b.mu.Lock()
	defer b.mu.Unlock()
	hits = e.Store.Acquire(ns, keys, b.leases[:len(keys)])
	for i := range keys {
		leases[i] = Lease{}
		if b.leases[i].Held() {
			leases[i].Leased = &b.parts[i]
			b.live++
		}
	}
	if b.live == 0 {
		e.free[b.size].Put(b)
	}
	return hits
}

// Release ends the lease. Idempotent, until the batch is used again.
func (h *held) Release() {
	b := h.batch
	b.mu.Lock()
	defer b.mu.Unlock()
	if !h.Held() {
		return
	}
	h.Lease.Release()
	if b.live--; b.live == 0 {
		b.engine.free[b.size].Put(b)
	}
}
