package routing

import (
	"fmt"
	"slices"
	"sync"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/op"
)

// maxCalls bounds the calls of a group that have not ended.
const maxCalls = 1024

// queue has the calls of a group that have not ended, in the order in which they were made. The
// first one runs. Ranks make the same calls in the same order, so all of them run the same one: it
// must not depend on which thread comes first.
type queue struct {
	mu     sync.Mutex
	calls  []*Call
	closed bool
}

// add makes a call the last one.
func (q *queue) add(c *Call) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return ep.ErrByOwner
	}
	if n := len(q.calls); n >= maxCalls {
		return fmt.Errorf("%w: %d routings, scatters and gathers of the buffer have not ended, allowed %d: wait for the first one, or cancel calls",
			op.ErrFull, n, maxCalls)
	}
	q.calls = append(q.calls, c)
	return nil
}

// first returns the call that runs, nil if there is none.
func (q *queue) first() *Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) == 0 {
		return nil
	}
	return q.calls[0]
}

// remove takes a call out, wherever it is.
func (q *queue) remove(c *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.calls, c); i >= 0 {
		q.calls = slices.Delete(q.calls, i, i+1)
	}
}

// close refuses later calls, and returns those that have not ended.
func (q *queue) close() []*Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	return slices.Clone(q.calls)
}

func (q *queue) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
