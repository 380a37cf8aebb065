package fabric

import (
	"fmt"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// peers are those that are known, at most Config.NumPeers. Guarded by
// Fabric.mu.
type peers struct {
	byID  map[endpoint.Peer]*peer
	order []*peer // as they came to be known
	next  int     // of order: the next peer that may be forgotten
}

// peerOf finds a peer, or remembers it from now on.
func (f *Fabric) peerOf(id endpoint.Peer) (*peer, error) {
	f.mu.RLock()
	p := f.peers.byID[id]
	f.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if p = f.peers.byID[id]; p != nil {
		return p, nil
	}
	p, err := f.newPeer(id)
	if err != nil {
		return nil, err
	}
	if !f.place(p) {
		return nil, fmt.Errorf("%w: %d peers are known and in use, num_peers is %d", transport.ErrWouldBlock, len(f.peers.order), f.cfg.NumPeers)
	}
	f.peers.byID[id] = p
	return p, nil
}

func (f *Fabric) newPeer(id endpoint.Peer) (p *peer, err error) {
	p = &peer{id: id}
	if f.cfg.Mode == Immediates {
		p.match, err = op.NewMatcher(f.cfg.NumUnmatched + f.cfg.RecvDepth)
	}
	return p, err
}

// place takes a place for a peer, if need be that of one with which nothing is
// under way: the next one in turn.
func (f *Fabric) place(p *peer) bool {
	all := &f.peers
	if len(all.order) < f.cfg.NumPeers {
		all.order = append(all.order, p)
		return true
	}
	for range all.order {
		at := all.next
		all.next = (at + 1) % len(all.order)
		if old := all.order[at]; f.isIdle(old) {
			delete(all.byID, old.id)
			all.order[at] = p
			return true
		}
	}
	return false
}

// isIdle tells that nothing is lost when a peer is forgotten, but the numbers
// of its messages.
func (f *Fabric) isIdle(p *peer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.live.Load() != nil || p.posted > 0 || (p.match != nil && !p.match.IsEmpty()) || f.store.Has(p.id) {
		return false
	}
	f.handshakes.mu.Lock()
	defer f.handshakes.mu.Unlock()
	return !p.queued
}

// allPeers returns every peer of this moment.
func (f *Fabric) allPeers() []*peer {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return append([]*peer(nil), f.peers.order...)
}
