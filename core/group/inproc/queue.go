package inproc

import (
	"math/rand/v2"
	"sync"

	"github.com/moewire/moewire/core/transport"
)

// queue holds the messages under way from one rank to another.
type queue struct {
	mu    sync.Mutex
	slots []message // a ring
	first int
	num   int
	delay int
	rand  *rand.Rand
}

type message struct {
	buf  []byte
	n    int64
	hold int // looks until it is seen
}

func newQueue(g *group, from, to int) *queue {
	return &queue{
		slots: make([]message, g.hosts.NumMessages), delay: g.hosts.MaxDelay,
		rand: rand.New(rand.NewPCG(g.hosts.DelaySeed, uint64(from)<<32|uint64(to))),
	}
}

// free is the place of the next message; nil: there is none.
func (q *queue) free() *message {
	if q.num == len(q.slots) {
		return nil
	}
	return &q.slots[(q.first+q.num)%len(q.slots)]
}

// reserve leases the memory of the next message. It holds what the sender left there
// before, or worse: no caller may count on it.
func (q *queue) reserve(n int64) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.free()
	if m == nil {
		return nil, transport.ErrWouldBlock
	}
	if int64(len(m.buf)) < n {
		m.buf = newSegment(n).bytes
	}
	return m.buf[:n:n], nil
}

func (q *queue) post(n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m := q.free()
	m.n, m.hold = n, 0
	if q.delay > 0 {
		m.hold = q.rand.IntN(q.delay + 1)
	}
	q.num++
}

func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.num
}

// next returns the oldest message; later: there is one that is not to be seen
// yet.
func (q *queue) next() (msg []byte, later bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.num == 0 {
		return nil, false
	}
	m := &q.slots[q.first]
	if m.hold > 0 {
		m.hold--
		return nil, true
	}
	return m.buf[:m.n:m.n], false
}

// drop drops the messages that were not taken, as they end with a sender's memory.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.num = 0
}

func (q *queue) release() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.num > 0 {
		q.first = (q.first + 1) % len(q.slots)
		q.num--
	}
}
