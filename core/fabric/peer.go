package fabric

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// peer is what is known of one peer. It stays while anything is under way with
// it, and else until another one needs its place.
type peer struct {
	id     endpoint.Peer
	live   atomic.Pointer[conn]
	number atomic.Uint64 // of the latest message

	// Guarded by the fabric's handshakes.
	queued       bool               // there is something to be carried to it
	hasHandshake bool               // its handshake is
	known        bool               // handshake is one, said or not
	handshake    endpoint.Handshake // the newest
	theirs       handshakeID        // where handshakes are signed: its fabric
	asked        handshakeID        // a fabric that is to get an introduction

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

// Connect waits until there is a live connection to a peer, and begins to make
// one. endpoint.ErrConnecting at the deadline: handshakes may have to be carried.
func (f *Fabric) Connect(id endpoint.Peer, deadline time.Time) error {
	if err := f.refusal(); err != nil {
		return err
	}
	for {
		p, err := f.peerOf(id) // while it waits for room it may be forgotten
		if err != nil {
			return err
		}
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
	p := f.peers.byID[id]
	f.mu.RUnlock()
	if p != nil {
		if c := p.live.Load(); c != nil {
			f.store.Retire(c.ref)
		}
	}
}

func (f *Fabric) retireAll() {
	for _, p := range f.allPeers() {
		f.Disconnect(p.id)
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
	f.list(c)
	if err = f.adopt(c); err == nil && f.cfg.Mode == Immediates {
		c.empty = make([]transport.RecvRequest, f.cfg.RecvDepth)
		for i := range c.empty {
			c.empty[i].ID = windowID(c.serial)
		}
		err = f.topUp(c)
	}
	if err != nil {
		f.drop(c)
	}
	return err
}

// list gives a connection its number, and records it if completions of empty
// receives will name it.
func (f *Fabric) list(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lastConn++
	c.serial = f.lastConn
	if f.cfg.Mode == Immediates {
		f.conns[c.serial] = c
	}
}

// adopt makes a connection the peer's newest, unless it is retired already:
// then there may be a newer one.
func (f *Fabric) adopt(c *conn) error {
	p := c.peer
	p.mu.Lock()
	if _, is := f.store.PeerOf(c.ref); !is {
		p.mu.Unlock()
		return transport.ErrState
	}
	former := p.making
	p.making = c
	failed := former != nil && former != p.live.Load() && former.dieLocked()
	p.mu.Unlock()
	if failed {
		f.unlist(former)
	}
	return nil
}

// drop takes a connection that has ended off the list, at once if no empty
// receive of it awaits its completion.
func (f *Fabric) drop(c *conn) {
	c.peer.mu.Lock()
	gone := c.dieLocked()
	c.peer.mu.Unlock()
	if gone {
		f.unlist(c)
	}
}

// dieLocked records that a connection has ended, and tells whether nothing will
// name it any more.
func (c *conn) dieLocked() (gone bool) {
	c.dead = true
	return c.posted == 0
}

func (f *Fabric) unlist(c *conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c.serial)
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
	replaced := old != nil && old != c
	if replaced {
		p.condemnLocked()
	}
	p.mu.Unlock()
	if replaced {
		f.poller.endReceivers(f, p)
	}
	if f.closing.Load() {
		f.store.Retire(ref)
	}
}

// ended tells the callers that wait for immediates that the connection is gone.
func (f *Fabric) ended(p *peer, ref endpoint.Ref) {
	p.mu.Lock()
	was := p.live.Load()
	var dropped *conn
	for _, c := range [...]*conn{p.making, was} {
		if c != nil && c.ref == ref && c.dieLocked() {
			dropped = c
		}
	}
	gone := was != nil && was.ref == ref && p.live.CompareAndSwap(was, nil)
	if gone {
		p.condemnLocked()
	}
	p.mu.Unlock()
	if dropped != nil {
		f.unlist(dropped)
	}
	if gone {
		f.poller.endReceivers(f, p) // what has arrived goes to the callers that wait for it
	}
}

// condemnLocked: callers that wait for immediates now wait for what has arrived.
func (p *peer) condemnLocked() {
	if p.match != nil {
		p.match.Condemn()
	}
}

// dismiss ends all receives of immediates.
func (f *Fabric) dismiss(why error) {
	for _, p := range f.allPeers() {
		p.mu.Lock()
		p.condemnLocked()
		p.mu.Unlock()
		f.abandonReceivers(p, why)
	}
}
