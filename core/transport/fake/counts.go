package fake

import "github.com/moewire/moewire/core/transport"

// Counts is what a device, or one endpoint, holds and has done, counted where
// it happens and not where it is asked for.
type Counts struct {
	QueuePairsCreated   int
	QueuePairsDestroyed int
	QueuePairs          int // now: from before creation returns until destruction has
	MaxQueuePairs       int // most at any time
	Regions             int
	LockedBytes         int64

	PostedSends int
	PostedRecvs int
	// Completed requests can be polled, or were; those in Polled were.
	Completed [transport.StatusOther + 1]int
	Polled    int
	Dropped   int // completions that a fault has lost
	Repeated  int // completions that a fault has doubled

	BusyCloses int // calls of Endpoint.Close that were too early
	LateWrites int // bytes written by a NIC that is late
}

// Posted is the number of requests accepted.
func (c *Counts) Posted() int { return c.PostedSends + c.PostedRecvs }

// Ended is the number of requests that have a completion.
func (c *Counts) Ended() int {
	sum := 0
	for _, n := range c.Completed {
		sum += n
	}
	return sum
}

// Counts returns what the device holds and has done.
func (t *Transport) Counts() Counts {
	t.network.mu.Lock()
	defer t.network.mu.Unlock()
	return t.counts
}

// Counts returns what the endpoint has done; QueuePairs is 1 until it is
// destroyed.
func (e *Endpoint) Counts() Counts {
	e.transport.network.mu.Lock()
	defer e.transport.network.mu.Unlock()
	return e.counts
}
