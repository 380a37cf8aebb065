package fabric

import (
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// windowSlot stands, in the number of a work request, for an empty receive: no
// transfer has it.
const windowSlot = op.MaxSlots - 1

func windowID(serial uint32) uint64 { return uint64(serial)<<32 | windowSlot<<16 }

func isWindow(id uint64) bool { return id>>16&0xffff == windowSlot }

// topUp posts as many empty receives as a connection may have now. What is
// posted, and what waits for a receiver, is together within the matcher's
// bound, so that an arrival always has a place.
func (f *Fabric) topUp(c *conn) error {
	p := c.peer
	p.mu.Lock()
	want := f.cfg.RecvDepth - c.posted
	room := f.cfg.NumUnmatched + f.cfg.RecvDepth - p.unmatched - p.posted
	if room < want {
		want, p.short = room, true
	}
	if want <= 0 || c.dead {
		p.mu.Unlock()
		return nil
	}
	c.posted += want
	p.posted += want
	p.mu.Unlock()
	n, err := f.store.PostRecv(c.ref, c.empty[:want])
	if n < want {
		f.unpost(c, want-n)
	}
	return err
}

// unpost takes back empty receives that could not be posted. If the connection was ended
// meanwhile, their completions take it off the list.
func (f *Fabric) unpost(c *conn, n int) {
	p := c.peer
	p.mu.Lock()
	c.posted -= n
	p.posted -= n
	_, is := f.store.PeerOf(c.ref)
	gone := !is && c.dieLocked()
	p.mu.Unlock()
	if gone {
		f.unlist(c)
	}
}

// arrived takes in the end of an empty receive.
func (f *Fabric) arrived(done *transport.Completion) {
	f.mu.RLock()
	c := f.conns[uint32(done.ID>>32)]
	f.mu.RUnlock()
	if c == nil {
		f.strays.Add(1)
		return
	}
	p := c.peer
	p.mu.Lock()
	c.posted--
	p.posted--
	c.dead = c.dead || done.Status != transport.StatusOK
	var ref op.Ref
	matched, isImm := false, done.Status == transport.StatusOK && done.HasImm
	if isImm {
		ref, matched = f.matchLocked(p, done)
	}
	dead, left := c.dead, c.posted
	p.mu.Unlock()
	if matched {
		f.table.Complete(ref.RequestID(0), nil, int64(done.NumBytes), done.Imm)
	} else if !isImm && done.Status == transport.StatusOK {
		f.strays.Add(1) // a send of nothing
	}
	switch {
	case !dead:
		_ = f.topUp(c) // or the connection is about to end
	case left == 0:
		f.unlist(c)
		if p.isShort() {
			f.refill.Store(true)
		}
	}
}

func (f *Fabric) matchLocked(p *peer, done *transport.Completion) (op.Ref, bool) {
	ref, matched, err := p.match.Arrive(op.Arrival{Imm: done.Imm, NumBytes: int64(done.NumBytes)})
	switch {
	case err != nil:
		f.strays.Add(1)
	case !matched:
		p.unmatched++
	}
	return ref, matched
}

func (p *peer) isShort() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.short
}

// refillAll posts what was held back at a bound.
func (f *Fabric) refillAll() {
	conns := f.poller.conns[:0]
	f.mu.RLock()
	for _, c := range f.conns {
		conns = append(conns, c)
	}
	f.mu.RUnlock()
	f.poller.conns = conns
	for _, c := range conns {
		c.peer.mu.Lock()
		c.peer.short = false
		c.peer.mu.Unlock()
	}
	for _, c := range conns {
		_ = f.topUp(c)
	}
}

// receive gives a transfer the oldest immediate of a peer, or lets it wait for
// one. op.ErrFull: too many wait.
func (f *Fabric) receive(p *peer, ref op.Ref) error {
	p.mu.Lock()
	if p.unmatched == 0 && p.live.Load() == nil {
		p.mu.Unlock()
		return transport.ErrState
	}
	a, matched, err := p.match.Receive(ref)
	refill := false
	if matched {
		p.unmatched--
		refill = p.short
	}
	p.mu.Unlock()
	if matched {
		f.table.Complete(ref.RequestID(0), nil, a.NumBytes, a.Imm)
	}
	if refill && !f.refill.Swap(true) {
		f.cfg.Transport.Wake()
	}
	return err
}

// withdraw ends a transfer's waiting for an immediate.
func (f *Fabric) withdraw(p *peer, ref op.Ref, why error) {
	p.mu.Lock()
	was := p.match.Withdraw(ref)
	p.mu.Unlock()
	if was {
		f.table.Complete(ref.RequestID(0), why, 0, 0)
	}
}

// abandonReceivers ends those that wait for immediates of a peer and are condemned.
func (f *Fabric) abandonReceivers(p *peer, why error) {
	if p.match == nil {
		return
	}
	for {
		p.mu.Lock()
		ref, was := p.match.Abandon()
		p.mu.Unlock()
		if !was {
			return
		}
		f.table.Complete(ref.RequestID(0), why, 0, 0)
	}
}
