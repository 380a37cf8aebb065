// Package pool leases values and bounds their number: contexts that hold memory or a
// share of a device.
//
// The bound is a strict reservation: a place is reserved before a value is made and
// released after the value is gone. So no number of callers at the same moment
// gets past it. At the bound, Get returns at once.
package pool

import (
	"errors"
	"fmt"
	"sync"
)

// Sentinels.
var (
	// ErrWouldBlock means that everything is leased. Nothing has happened.
	ErrWouldBlock = errors.New("pool is at its bound")
	// ErrReleased means that a lease was released before.
	ErrReleased = errors.New("lease was released already")
	// ErrClosed means that the pool was closed.
	ErrClosed = errors.New("pool is closed")
)

// Config says what a pool leases. Make, Clean and Destroy are never called
// under the pool's lock, and never twice at a time for the same value.
type Config[T any] struct {
	// Cap is how many values may exist at a time: free, leased, released and not
	// clean yet, or just being made or destroyed.
	Cap int
	// Make makes a value.
	Make func() (T, error)
	// Clean makes a released value fit to be leased again. With it, released
	// values wait for Drain; without it, they are free at once. If Clean fails,
	// the value is destroyed.
	Clean func(T) error
	// Destroy ends a value. May be nil.
	Destroy func(T)
}

// Stats counts. Live, Free, Leased and Queued are of this moment.
type Stats struct {
	Live, Free, Leased, Queued int
	Made, Destroyed            uint64
	Capped, Failed, Misplaced  uint64 // would-blocks; failures of Make; refused releases
}

type state uint8

const (
	empty  state = iota // no value
	moving              // being made, cleaned or destroyed, by one goroutine
	free
	leased
	queued // released, to be cleaned
)

type entry[T any] struct {
	value T
	gen   uint32 // from 1, grows with every release: 2^32 - 1 of them until it repeats
	state state
}

// Lease is a value that is leased. It is plain data, valid until Put. The zero
// Lease is no lease.
type Lease[T any] struct {
	Value T
	index uint32
	gen   uint32
}

// Pool leases values. Safe for concurrent use; Get and Put allocate nothing
// once all values have been made.
type Pool[T any] struct {
	cfg Config[T]

	mu      sync.Mutex
	entries []entry[T]
	empty   []uint32 // without a value
	free    []uint32 // the last released first: its memory is warm
	queue   fifo     // released, in order
	waiters []*waiter[T]
	closed  bool
	stats   Stats
}

// New makes a pool. Nothing is made yet.
func New[T any](cfg Config[T]) (*Pool[T], error) {
	if cfg.Cap < 1 || cfg.Cap > 1<<31-1 {
		return nil, fmt.Errorf("pool: cap %d, allowed 1 to 2^31-1", cfg.Cap)
	}
	if cfg.Make == nil {
		return nil, errors.New("pool: make is nil")
	}
	p := &Pool[T]{cfg: cfg, entries: make([]entry[T], cfg.Cap)}
	p.empty, p.free = make([]uint32, cfg.Cap), make([]uint32, 0, cfg.Cap)
	p.queue.at = make([]uint32, cfg.Cap)
	for i := range p.empty {
		p.empty[i] = uint32(cfg.Cap - 1 - i)
		p.entries[i].gen = 1
	}
	return p, nil
}

// Get leases a value, or returns ErrWouldBlock at once. Any other error is of
// Make, or ErrClosed.
func (p *Pool[T]) Get() (Lease[T], error) {
	p.mu.Lock()
	l, index, err := p.take()
	p.mu.Unlock()
	if err != nil || index < 0 {
		return l, err
	}
	return p.make(uint32(index))
}

// take leases a free value, or reserves the place of a new one: index >= 0.
func (p *Pool[T]) take() (l Lease[T], index int, err error) {
	switch {
	case p.closed:
		return l, -1, ErrClosed
	case len(p.free) > 0:
		return p.lease(pop(&p.free)), -1, nil
	case len(p.empty) > 0:
		i := p.reserve()
		return l, int(i), nil
	}
	p.stats.Capped++
	return l, -1, ErrWouldBlock
}

// reserve takes a place before anything is made for it.
func (p *Pool[T]) reserve() uint32 {
	i := pop(&p.empty)
	p.entries[i].state = moving
	p.stats.Live++
	return i
}

func (p *Pool[T]) lease(i uint32) Lease[T] {
	e := &p.entries[i]
	e.state = leased
	p.stats.Leased++
	return Lease[T]{Value: e.value, index: i, gen: e.gen}
}

// make fills a reserved place, or releases it, also when Make panics.
func (p *Pool[T]) make(i uint32) (Lease[T], error) {
	made := false
	defer func() {
		if !made {
			p.unmade(i)
		}
	}()
	v, err := p.cfg.Make()
	made = true
	p.mu.Lock()
	if err != nil {
		p.stats.Failed++
		p.vacate(i)
		p.mu.Unlock()
		return Lease[T]{}, err
	}
	p.stats.Made++
	p.entries[i].value = v
	if p.closed {
		p.mu.Unlock()
		p.destroy(i)
		return Lease[T]{}, ErrClosed
	}
	defer p.mu.Unlock()
	return p.lease(i), nil
}

// unmade gives the place of a Make back that has panicked.
func (p *Pool[T]) unmade(i uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Failed++
	p.vacate(i)
}

// vacate gives a place back; the caller that has waited longest makes a value in it.
func (p *Pool[T]) vacate(i uint32) {
	var none T
	p.entries[i].value, p.entries[i].state = none, empty
	p.empty = append(p.empty, i)
	p.stats.Live--
	p.invite()
}

// Put ends a lease. It makes and destroys nothing (except after Close) and
// never waits.
func (p *Pool[T]) Put(l Lease[T]) error {
	p.mu.Lock()
	if !p.isLeased(l) {
		p.stats.Misplaced++
		p.mu.Unlock()
		return ErrReleased
	}
	e := &p.entries[l.index]
	e.gen = max(e.gen+1, 1)
	p.stats.Leased--
	switch {
	case p.closed:
		e.state = moving
		p.mu.Unlock()
		p.destroy(l.index)
		return nil
	case p.cfg.Clean != nil:
		e.state = queued
		p.queue.push(l.index)
		p.stats.Queued++
	default:
		p.offer(l.index)
	}
	p.mu.Unlock()
	return nil
}

func (p *Pool[T]) isLeased(l Lease[T]) bool {
	if int(l.index) >= len(p.entries) {
		return false
	}
	e := &p.entries[l.index]
	return e.state == leased && e.gen == l.gen
}

// offer hands a clean value to the oldest waiter, or makes it free.
func (p *Pool[T]) offer(i uint32) {
	if len(p.waiters) > 0 {
		p.shift().lease <- p.lease(i)
		return
	}
	p.entries[i].state = free
	p.free = append(p.free, i)
}

// Drain cleans at most n released values, oldest first, and returns how many.
func (p *Pool[T]) Drain(n int) (drained int) {
	for ; drained < n; drained++ {
		p.mu.Lock()
		i, ok := p.queue.pop()
		if !ok {
			p.mu.Unlock()
			return drained
		}
		p.stats.Queued--
		p.entries[i].state = moving
		v := p.entries[i].value
		p.mu.Unlock()
		p.clean(i, v)
	}
	return drained
}

// clean makes a value free, or destroys it when Clean fails or panics: the state of the
// value is unknown then.
func (p *Pool[T]) clean(i uint32, v T) {
	offered := false
	defer func() {
		if !offered {
			p.destroy(i)
		}
	}()
	if p.cfg.Clean(v) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if offered = !p.closed; offered {
		p.offer(i)
	}
}

// Stats returns the counts of this moment.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Free = len(p.free)
	return s
}

func pop(s *[]uint32) uint32 {
	last := len(*s) - 1
	i := (*s)[last]
	*s = (*s)[:last]
	return i
}

// fifo is a queue with room for every entry of a pool.
type fifo struct {
	at    []uint32
	head  int
	count int
}

func (q *fifo) push(i uint32) {
	q.at[(q.head+q.count)%len(q.at)] = i
	q.count++
}

func (q *fifo) pop() (i uint32, ok bool) {
	if q.count == 0 {
		return 0, false
	}
	i = q.at[q.head]
	q.head = (q.head + 1) % len(q.at)
	q.count--
	return i, true
}
