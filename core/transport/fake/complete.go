package fake

import (
	"time"

	"github.com/moewire/moewire/core/transport"
)

// complete reports the end of a request, if no fault holds it up.
func (r *request) complete(now time.Time) bool {
	if !r.struck {
		r.struck = true
		if lost, held := r.meetFault(now); lost || held {
			return true // a step, even if nothing can be seen of it
		}
	}
	n, t := r.ep.transport.network, r.ep.transport
	n.deactivate(r)
	r.stage = stageQueued
	if n.cfg.Late == LateUntilStatus {
		n.forget(func(w *lateWrite) bool { return w.request == r })
	}
	c := r.completion()
	t.finished.push(finished{c, r})
	if r.duplicate {
		t.counts.Repeated++
		t.finished.push(finished{c, nil})
	}
	r.ep.counts.Completed[r.status]++
	t.counts.Completed[r.status]++
	t.Wake()
	return true
}

// meetFault looks for a fault at a completion.
func (r *request) meetFault(now time.Time) (lost, held bool) {
	n, t := r.ep.transport.network, r.ep.transport
	f := n.strike(AtComplete, t, r.ep.id, r.op)
	if f == nil {
		return false, false
	}
	r.duplicate = f.Duplicate
	if f.Status != transport.StatusOK {
		r.vendor = f.Vendor
		r.finish(f.Status)
	}
	if f.Drop {
		n.deactivate(r)
		r.stage = stageLost
		r.ep.counts.Dropped++
		t.counts.Dropped++
		return true, false
	}
	d := n.delay(f)
	r.notBefore = now.Add(d)
	return false, d > 0
}

func (r *request) completion() transport.Completion {
	c := transport.Completion{
		ID: r.id, Endpoint: r.ep.id, Op: r.op, Status: r.status, Vendor: r.vendor,
	}
	if r.status == transport.StatusOK {
		c.HasImm, c.Imm, c.NumBytes = r.hasImm, 0, uint32(r.numBytes)
		if r.hasImm {
			c.Imm = r.imm
		}
	}
	return c
}

// lateWrite is memory that a late NIC still writes into.
type lateWrite struct {
	ep       *Endpoint
	request  *request
	region   *Region
	off, len int
}

// lateWrites notes the memory of a request that ends because its endpoint is in
// StateError: the NIC may still write there.
func (r *request) lateWrites() {
	n := r.ep.transport.network
	if n.cfg.Late == LateNever || !r.recv && r.op != transport.OpRead {
		return
	}
	for _, p := range r.pieces {
		n.late = append(n.late, lateWrite{r.ep, r, p.Region.(*Region), p.Off, p.Bytes})
	}
}

// Scribble makes every late NIC write. Steps do so as well.
func (n *Network) Scribble() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.scribble()
}

func (n *Network) scribble() {
	for _, w := range n.late {
		for i := range w.len {
			w.region.mem[w.off+i] ^= byte(1 + n.rand.Uint32()%255) // always another value
		}
		w.ep.counts.LateWrites += w.len
		w.ep.transport.counts.LateWrites += w.len
	}
}

// forget ends late writes.
func (n *Network) forget(which func(*lateWrite) bool) {
	kept := n.late[:0]
	for i := range n.late {
		if !which(&n.late[i]) {
			kept = append(kept, n.late[i])
		}
	}
	clear(n.late[len(kept):])
	n.late = kept
}
