package client

import (
	"math"
	"time"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/stream"
)

// complaintTime is longer than a server looks at a block that a reader complains of.
const complaintTime = 2 * time.Minute

// inUseEvery is how often a part is looked at that is late while its memory is in use.
const inUseEvery = 10 * time.Millisecond

// forever is when there is nothing to watch.
const forever = time.Duration(1 << 62)

// watch holds what runs to its deadlines.
func (c *Client) watch() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next := forever
		c.looks.Store(math.MaxInt64) // before the look: what it may miss kicks
		for _, p := range c.peers {
			p.mu.Lock()
			links := [...]*link{p.link, p.left}
			p.mu.Unlock()
			for _, l := range links {
				if l != nil {
					next = min(next, l.expire())
				}
			}
		}
		var at <-chan time.Time
		if next < forever {
			timer.Reset(max(next, time.Millisecond))
			at = timer.C
			c.looks.Store(stream.Now() + int64(next))
		}
		select {
		case <-c.closing:
			return
		case <-c.wakeup:
		case <-at:
		}
	}
}

// watchFor makes the watch look in time for what may be late after so long, and has begun.
func (c *Client) watchFor(timeout time.Duration) {
	if stream.Now()+int64(timeout) < c.looks.Load() {
		c.wakeWatch()
	}
}

func (c *Client) wakeWatch() {
	select {
	case c.wakeup <- struct{}{}:
	default:
	}
}

// expire gives up what is late, ends a link over which nothing comes, and says when there is
// something to do again. A part with memory in use ends with the link, or goes on.
func (l *link) expire() (next time.Duration) {
	now, next := stream.Now(), forever
	expired, hung := l.expired(now, &next)
	for _, t := range expired {
		l.peer.client.counts.Late.Add(uint64(max(1, len(t.keys))))
		t.complete()
	}
	if hung {
		l.fail(errHung)
	}
	return next
}

func (l *link) expired(now int64, next *time.Duration) (expired []*part, hung bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queue[:0]
	for _, t := range l.queue {
		if l.over(t, now, t.timeout, next) {
			expired = append(expired, t)
		} else {
			queue = append(queue, t)
		}
	}
	clear(l.queue[len(queue):])
	l.queue = queue
	for _, t := range l.running {
		if l.isLate(t, now, next) {
			given := *t // the one in the table stays, for the reply
			expired = append(expired, &given)
			t.call, t.bufs, t.keys = nil, nil, noKeys[:len(t.keys)]
		}
		switch t.code {
		case message.Flush: // it takes as long as a disk does
		case message.Bad: // and so may the look at a block
			hung = l.over(t, now, complaintTime, next) || hung
		default:
			hung = l.over(t, now, max(t.timeout, l.peer.client.cfg.Timeout), next) || hung
		}
	}
	return expired, hung
}

// isLate reports whether a part that runs is to be given up. One that is late while its memory is in use is looked at again
// soon.
func (l *link) isLate(t *part, now int64, next *time.Duration) bool {
	switch {
	case t.call == nil || !l.over(t, now, t.timeout, next):
		return false
	case t.writing || t.reading:
		*next = min(*next, inUseEvery)
		return false
	}
	return true
}

// over reports whether nothing has come for so long, since a part was begun.
func (l *link) over(t *part, now int64, timeout time.Duration, next *time.Duration) bool {
	left := time.Duration(max(t.begun, l.in.Progress(), l.wrote.Load())+int64(timeout)) - time.Duration(now)
	if left <= 0 {
		return true
	}
	*next = min(*next, left)
	return false
}
