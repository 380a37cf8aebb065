package inproc

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// Hosts spreads a group over pretended hosts: ranks of one host reach one
// another's words and slabs, all others only by messages.
type Hosts struct {
	Of []int // the host of each rank
	// WordsBytes is how much of the beginning of a remote rank's control region is a
	// private page of the rank that looks. The rest is what heartbeats would carry: it is
	// the remote rank's own.
	WordsBytes int64
	// MaxMessageBytes is the length of the longest message, 64 KiB if 0.
	MaxMessageBytes int64
	// NumMessages is how many may be under way from one rank to another, 4 if 0.
	NumMessages int
	// MaxDelay, if more than 0: the receiver looks up to so often, as a generator
	// with this seed draws, before it sees a message.
	MaxDelay  int
	DelaySeed uint64
}

func (h Hosts) defaults() Hosts {
	if h.MaxMessageBytes == 0 {
		h.MaxMessageBytes = 64 << 10
	}
	if h.NumMessages == 0 {
		h.NumMessages = 4
	}
	return h
}

// NewHosts is NewPartial for a group over several hosts.
func NewHosts(present rankset.Set, controlBytes int64, h Hosts) []domain.Domain {
	n := len(h.Of)
	views := NewPartial(n, present, controlBytes)
	for _, v := range views {
		if v == nil {
			continue
		}
		g := v.(*Domain).group
		if g.hosts == nil {
			h = h.defaults()
			g.hosts = &h
			g.queues = make([]atomic.Pointer[queue], n*n)
			for r := range n {
				g.connect(r)
			}
		}
	}
	return views
}

// sameHost reports whether two ranks share memory.
func (g *group) sameHost(a, b int) bool { return g.hosts == nil || g.hosts.Of[a] == g.hosts.Of[b] }

// connect makes fresh queues for a rank.
func (g *group) connect(rank int) {
	if g.hosts == nil {
		return
	}
	for r := range g.ranks {
		if !g.sameHost(rank, r) {
			g.at(rank, r).Store(newQueue(g, rank, r))
			g.at(r, rank).Store(newQueue(g, r, rank))
		}
	}
}

// drop drops the messages of a rank that closes, unless another process has its number.
func (g *group) drop(d *Domain) {
	if g.hosts == nil || g.ranks[d.rank].Load() != d.own {
		return
	}
	for r := range g.ranks {
		if !g.sameHost(d.rank, r) {
			g.at(d.rank, r).Load().drop()
		}
	}
}

func (g *group) at(from, to int) *atomic.Pointer[queue] { return &g.queues[from*len(g.ranks)+to] }

// remotePage is a remote rank's control region as one rank sees it: its words as
// messages bring them, the rest as the rank itself writes it.
type remotePage struct {
	domain.Segment // the rank's own
	words          *segment
}

func (p *remotePage) Word(off int64) *atomic.Uint64 {
	if off < p.words.SizeBytes() {
		return p.words.Word(off)
	}
	return p.Segment.Word(off)
}

// Remote reaches the ranks of other hosts, as connected now.
func (d *Domain) Remote() domain.Remote {
	g := d.group
	if g.hosts == nil {
		return nil
	}
	f := &remote{d: d, out: make([]*queue, len(g.ranks)), in: make([]*queue, len(g.ranks))}
	for r := range g.ranks {
		if !g.sameHost(d.rank, r) {
			f.ranks = f.ranks.With(r)
			f.out[r], f.in[r] = g.at(d.rank, r).Load(), g.at(r, d.rank).Load()
		}
	}
	if f.ranks.Empty() {
		return nil
	}
	return f
}

// remote implements domain.Remote over bounded queues.
type remote struct {
	d       *Domain
	ranks   rankset.Set
	out, in []*queue
}

var _ domain.Remote = (*remote)(nil)

func (f *remote) Ranks() rankset.Set     { return f.ranks }
func (f *remote) MaxMessageBytes() int64 { return f.d.group.hosts.MaxMessageBytes }

// WordAge: control pages are shared by all.
func (f *remote) WordAge() time.Duration { return 0 }

// Reserve leases a buffer of the queue.
func (f *remote) Reserve(rank int, n int64) ([]byte, error) {
	switch to := f.d.at(rank); {
	case f.d.own.Lost() != nil:
		return nil, f.d.own.Lost()
	case n < 0 || n > f.MaxMessageBytes():
		return nil, fmt.Errorf("inproc: a message of %d bytes, allowed 0 to %d", n, f.MaxMessageBytes())
	case to == nil:
		return nil, fmt.Errorf("inproc: rank %d is absent: %w", rank, domain.ErrExited)
	case to.Lost() != nil:
		return nil, to.Lost()
	}
	return f.out[rank].reserve(n)
}

// Post makes it the newest message.
func (f *remote) Post(rank int, n int64) error {
	f.out[rank].post(n)
	f.d.wake(rank)
	return nil
}

// Next returns the oldest message.
func (f *remote) Next(rank int) []byte {
	if f.d.own.Lost() != nil {
		return nil // as an ended process
	}
	msg, later := f.in[rank].next()
	if later {
		f.d.own.ring() // look again
	}
	return msg
}

// Release takes it out of the queue.
func (f *remote) Release(rank int) {
	f.in[rank].release()
	f.d.wake(rank)
}

// Untaken looks into the queues.
func (f *remote) Untaken() (ranks rankset.Set) {
	for r, q := range f.out {
		if to := f.d.at(r); q != nil && to != nil && to.Lost() == nil && q.length() > 0 {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// Memory is on the Go heap.
func (f *remote) Memory(sizeBytes int64) (domain.Segment, error) {
	return newSegment(sizeBytes), nil
}
