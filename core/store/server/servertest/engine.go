// Package servertest is an engine of maps for tests.
package servertest

import (
	"bytes"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/tag"
)

// Engine keeps blocks in maps. Its fields may be changed before it is used.
type Engine struct {
	Most     int64                 // bytes of one block
	Room     int64                 // bytes of all
	OnDisk   atomic.Bool           // blocks have no memory of their own
	OnRead   func(off int64) error // before bytes are read of the disk; nil: nothing
	FlushFor time.Duration
	Stuck    chan struct{}              // a flush waits for it, whatever its deadline; nil: none does
	Holds    chan struct{}              // a commit waits for it; nil: none does
	Scan     int                        // how many keys a list looks at; 0: all
	Look     func()                     // is called by Exists, if not nil
	Evict    func(stop <-chan struct{}) // is EvictOverQuotas, if not nil

	mu      sync.Mutex
	spaces  map[[32]byte]store.NS
	blocks  map[store.NS]map[string]*block
	used    int64
	Open    int // writings and leases
	Held    int // namespaces, as often as they were opened
	Quotas  map[[16]byte]int64
	Touched int
	Bads    int
}

type block struct {
	data []byte
	tag  tag.Tag
}

// New makes one.
func New() *Engine {
	return &Engine{Most: 16 << 20, Room: 1 << 30, spaces: map[[32]byte]store.NS{}, blocks: map[store.NS]map[string]*block{}}
}

func (e *Engine) Namespace(digest [32]byte, _ string) (store.NS, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Held++
	ns, known := e.spaces[digest]
	if !known {
		ns = store.NS(len(e.spaces))
		e.spaces[digest], e.blocks[ns] = ns, map[string]*block{}
	}
	return ns, nil
}

func (e *Engine) Leave(store.NS) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Held--
}

func (e *Engine) SetQuotas(quotas map[[16]byte]int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Quotas = quotas
}

// EvictOverQuotas is Evict.
func (e *Engine) EvictOverQuotas(stop <-chan struct{}) {
	if e.Evict != nil {
		e.Evict(stop)
	}
}

// QuotaOf is what was said of a tenant last.
func (e *Engine) QuotaOf(tenant [16]byte) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Quotas[tenant]
}

// NumHeld is how many namespaces were opened and not left.
func (e *Engine) NumHeld() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Held
}

// TagKey is the same one for all engines.
func (e *Engine) TagKey() tag.Key { return tag.Key{7, 31: 1} }

func (e *Engine) MaxBlockBytes(int) int64 { return e.Most }

func (e *Engine) Exists(ns store.NS, keys [][]byte, found []bool) (consecutive int) {
	if e.Look != nil {
		e.Look()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, k := range keys {
		found[i] = e.blocks[ns][string(k)] != nil
		if found[i] && consecutive == i {
			consecutive++
		}
	}
	return consecutive
}

func (e *Engine) Allocate(a store.Allocation) (server.Writing, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.known(&a); err != nil {
		return nil, err
	}
	if a.Bytes > e.Most {
		return nil, store.ErrTooLarge
	}
	if e.used+a.Bytes > e.Room {
		return nil, store.ErrFull
	}
	e.used += a.Bytes
	e.Open++
	a.Key = bytes.Clone(a.Key)
	return &writing{engine: e, a: a, buf: make([]byte, a.Bytes)}, nil
}

func (e *Engine) known(a *store.Allocation) error {
	b := e.blocks[a.NS][string(a.Key)]
	switch {
	case b == nil:
		return nil
	case int64(len(b.data)) == a.Bytes && b.tag == a.Tag:
		return store.ErrExists
	}
	return store.ErrConflict
}

type writing struct {
	engine *Engine
	a      store.Allocation
	buf    []byte
	ended  bool
}

func (w *writing) Buffer() []byte { return w.buf }

func (w *writing) Commit() error {
	if w.engine.Holds != nil {
		<-w.engine.Holds
	}
	return w.end(true)
}

func (w *writing) Abort() { _ = w.end(false) }

func (w *writing) Release() { w.Abort() }

func (w *writing) end(keep bool) error {
	e := w.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.ended {
		return nil
	}
	w.ended = true
	e.Open--
	err := e.known(&w.a)
	if keep && err == nil {
		e.blocks[w.a.NS][string(w.a.Key)] = &block{w.buf, w.a.Tag}
		return nil
	}
	e.used -= w.a.Bytes
	return err
}

type lease struct {
	engine *Engine
	ns     store.NS
	key    string
	block  *block
	over   bool
}

func (l *lease) Bytes() int64 { return int64(len(l.block.data)) }
func (l *lease) Tag() tag.Tag { return l.block.tag }

func (l *lease) Data() []byte {
	if l.engine.OnDisk.Load() {
		return nil
	}
	return l.block.data
}

// Place is 0: there is no arena.
func (l *lease) Place() int64 { return 0 }

func (l *lease) Read(off int64, p []byte) error {
	if l.engine.OnRead != nil {
		if err := l.engine.OnRead(off); err != nil {
			return err
		}
	}
	copy(p, l.block.data[off:])
	return nil
}

func (l *lease) Release() {
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	if !l.over {
		l.over = true
		l.engine.Open--
	}
}

func (e *Engine) Acquire(ns store.NS, keys [][]byte, leases []server.Lease) (hits int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, k := range keys {
		if b := e.blocks[ns][string(k)]; b != nil {
			leases[i] = server.Lease{Leased: &lease{engine: e, ns: ns, key: string(k), block: b}}
			e.Open++
			hits++
		}
	}
	return hits
}

func (e *Engine) Delete(ns store.NS, keys [][]byte, deleted []bool) (num int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, k := range keys {
		b := e.blocks[ns][string(k)]
		if deleted[i] = b != nil; deleted[i] {
			e.used -= int64(len(b.data))
			delete(e.blocks[ns], string(k))
			num++
		}
	}
	return num
}

func (e *Engine) Touch(_ store.NS, keys [][]byte) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Touched += len(keys)
	return len(keys)
}

func (e *Engine) Pin(ns store.NS, keys [][]byte, _ time.Time, pinned []bool) int {
	return e.Exists(ns, keys, pinned)
}

func (e *Engine) List(ns store.NS, prefix []byte, cursor uint64, n int) (keys [][]byte, next uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := slices.Sorted(maps.Keys(e.blocks[ns]))
	for at := int(cursor); at < len(all); at++ {
		if len(keys) == n || e.Scan > 0 && at == int(cursor)+e.Scan {
			return keys, uint64(at)
		}
		if bytes.HasPrefix([]byte(all[at]), prefix) {
			keys = append(keys, []byte(all[at]))
		}
	}
	return keys, 0
}

func (e *Engine) Flush(deadline time.Time) error {
	if e.Stuck != nil {
		<-e.Stuck
	}
	time.Sleep(min(e.FlushFor, time.Until(deadline)))
	return nil
}

// Bad drops the block, if it is still that of its key.
func (l *lease) Bad() {
	e := l.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Bads++
	if e.blocks[l.ns][l.key] == l.block {
		e.used -= l.Bytes()
		delete(e.blocks[l.ns], l.key)
	}
}

// Spoil flips a bit of a block.
func (e *Engine) Spoil(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, blocks := range e.blocks {
		if b := blocks[key]; b != nil {
			b.data[len(b.data)/2] ^= 1
		}
	}
}

// Counts are what is open, how many keys were touched and how many reported.
func (e *Engine) Counts() (open, touched, bads int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.Open, e.Touched, e.Bads
}
