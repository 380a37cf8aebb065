package fabric

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// peer is what is known of one peer. It stays until the fabric is closed.
type peer struct {
	id     endpoint.Peer
	live   atomic.Pointer[conn]
	number atomic.Uint64 // of the latest message

	// Guarded by the fabric's notes.
	hasNote bool
	note    endpoint.Note

	mu        sync.Mutex
	making    *conn       // the newest
	match     *op.Matcher // Immediates
	unmatched int         // immediates that wait for a receiver
	posted    int         // empty receives, on whatever connection
	short     bool        // a window is smaller than it is to be
}

// conn is one connection, live or not.
type conn struct {
	ref    endpoint.Ref
	peer   *peer
	serial uint32
	sends  atomic.Int32 // slices outstanding
	recvs  atomic.Int32 // receives with memory outstanding

	// Guarded by peer.mu.
	dead   bool
	posted int // empty receives
	empty  []transport.RecvRequest
}

// take reserves n places at most `depth`.
func take(of *atomic.Int32, n, depth int32) bool {
	for {
		v := of.Load()
		if v+n > depth {
			return false
		}
		if of.CompareAndSwap(v, v+n) {
			return true
		}
	}
}

// peerOf finds a peer, or remembers it from now on.
func (f *Fabric) peerOf(id endpoint.Peer) (*peer, error) {
	f.mu.RLock()
	p := f.peers[id]
	f.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p = f.peers[id]; p != nil {
		return p, nil
	}
	if len(f.peers) >= f.cfg.NumPeers {
		return nil, fmt.Errorf("%w: %d peers are known, at most %d", transport.ErrWouldBlock, len(f.peers), f.cfg.NumPeers)
	}
	p = &peer{id: id}
	if f.cfg.Mode == Immediates {
		bound := f.cfg.NumUnmatched + f.cfg.RecvDepth
		if f.mutant == boundless {
			bound = f.cfg.NumUnmatched
		}
		var err error
		if p.match, err = op.NewMatcher(bound); err != nil {
			return nil, err
		}
	}
	f.peers[id] = p
	return p, nil
}

// Connect waits until there is a live connection to a peer, and begins to make
// one. endpoint.ErrConnecting at the deadline: notes may have to be carried.
func (f *Fabric) Connect(id endpoint.Peer, deadline time.Time) error {
	if err := f.refusal(); err != nil {
		return err
	}
	p, err := f.peerOf(id)
	if err != nil {
		return err
	}
	for {
		ref, err := f.store.Wait(id, deadline)
		if err != nil {
			return err
		}
		if c := p.live.Load(); c != nil && c.ref == ref {
			return nil
		}
		if !time.Now().Before(deadline) {
			return endpoint.ErrConnecting
		}
		time.Sleep(10 * time.Microsecond) // changed is about to be called
	}
}

// Disconnect ends the connection to a peer, if there is a live one. What is
// outstanding on it ends with ErrEnded.
func (f *Fabric) Disconnect(id endpoint.Peer) {
	f.mu.RLock()
	p := f.peers[id]
	f.mu.RUnlock()
	if p != nil {
		if c := p.live.Load(); c != nil {
			f.store.Retire(c.ref)
		}
	}
}

func (f *Fabric) retireAll() {
	f.mu.RLock()
	peers := make([]endpoint.Peer, 0, len(f.peers))
	for id := range f.peers {
		peers = append(peers, id)
	}
	f.mu.RUnlock()
	for _, id := range peers {
		f.Disconnect(id)
	}
}

// prepare is called for a connection that is being made.
func (f *Fabric) prepare(ref endpoint.Ref) error {
	id, ok := f.store.PeerOf(ref)
	if !ok {
		return transport.ErrState
	}
	p, err := f.peerOf(id)
	if err != nil {
		return err
	}
	c := &conn{ref: ref, peer: p}
	f.mu.Lock()
	f.lastConn++
	c.serial = f.lastConn
	if f.cfg.Mode == Immediates {
		f.conns[c.serial] = c
	}
	f.mu.Unlock()
	p.mu.Lock()
	p.making = c
	p.mu.Unlock()
	if f.cfg.Mode == Messages {
		return nil
	}
	c.empty = make([]transport.RecvRequest, f.cfg.RecvDepth)
	for i := range c.empty {
		c.empty[i].ID = windowID(c.serial)
	}
	return f.topUp(c)
}

// changed is called when a connection has become live or has ceased to be.
// Two calls may come in either order.
func (f *Fabric) changed(id endpoint.Peer, ref endpoint.Ref, why error) {
	p, err := f.peerOf(id)
	if err != nil {
		return
	}
	if why != nil {
		f.ended(p, ref)
		return
	}
	p.mu.Lock()
	c := p.making
	if c == nil || c.ref != ref || c.dead {
		p.mu.Unlock()
		return
	}
	old := p.live.Swap(c)
	p.mu.Unlock()
	if old != nil && old != c {
		f.abandonReceivers(p, ErrEnded)
	}
	if f.closing.Load() {
		f.store.Retire(ref)
	}
}

// ended tells those who wait for immediates that the connection is gone.
func (f *Fabric) ended(p *peer, ref endpoint.Ref) {
	p.mu.Lock()
	was := p.live.Load()
	for _, c := range [...]*conn{p.making, was} {
		if c != nil && c.ref == ref {
			c.dead = true
		}
	}
	gone := was != nil && was.ref == ref && p.live.CompareAndSwap(was, nil)
	p.mu.Unlock()
	if gone && f.mutant != forgetOwed {
		f.abandonReceivers(p, ErrEnded)
	}
}

// dismiss ends all receives of immediates.
func (f *Fabric) dismiss(why error) {
	f.mu.RLock()
	peers := make([]*peer, 0, len(f.peers))
	for _, p := range f.peers {
		peers = append(peers, p)
	}
	f.mu.RUnlock()
	for _, p := range peers {
		f.abandonReceivers(p, why)
	}
}
