package client

import (
	"go.uber.org/atomic"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// Counters count what became of keys and connections, by reason. Safe for concurrent use.
type Counters struct {
	Hits, Misses atomic.Uint64
	BadTags      atomic.Uint64 // bytes that are not those that were written: misses
	Changed      atomic.Uint64 // those of them that are right at their server: links that ended
	TooSmall     atomic.Uint64 // a buffer
	Late         atomic.Uint64 // no progress until the deadline
	Unreachable  atomic.Uint64 // the server is known to be gone
	Capped       atomic.Uint64 // this client's own bound
	Broken       atomic.Uint64 // links that ended
	ProbesFailed atomic.Uint64
	Refused      atomic.Uint64 // handshakes
	Latched      atomic.Uint64 // servers that send blocks by TCP though they could come better
	Moved        atomic.Uint64 // blocks that were not where they had been, and had to be sent
	NotCached    atomic.Uint64 // blocks that a disk would have had to be waited for, and had to be sent
	Unreadable   atomic.Uint64 // blocks that could not be read where they lie, and had to be sent
	Bounced      atomic.Uint64 // puts of which the server copied the block from shared memory
	Frames       wire.Counters
	statuses     [message.NumStatuses]atomic.Uint64
}

func (c *Counters) count(s message.Status) {
	if s < message.NumStatuses {
		c.statuses[s].Add(1)
	}
}

// refused counts a refusal.
func (l *link) refused(s message.Status, code message.Code) {
	l.peer.client.counts.count(s)
	if s == message.Denied {
		l.peer.deny(message.CodeName(code) + " was refused: the key has no right to it")
	}
}

// Replies is how many puts, or refusals of anything, had a status.
func (c *Counters) Replies(s message.Status) uint64 { return c.statuses[s].Load() }

// Counters are this client's.
func (c *Client) Counters() *Counters { return &c.counts }

// Up is how many servers there are at this moment, and why the others are not there.
func (c *Client) Up() (up int, why []error) {
	for _, p := range c.peers {
		switch l, err := p.live(); {
		case l != nil:
			up++
		case err != nil:
			why = append(why, err)
		}
	}
	return up, why
}
