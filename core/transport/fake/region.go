package fake

import (
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// Region is registered memory, of the Go heap or not.
type Region struct {
	transport *Transport
	mem       []byte
	remote    transport.RemoteRegion
	access    transport.Access

	// Under the network's lock.
	numUses int // pieces of requests with completions that were not polled
	closed  bool
}

// Bytes is the memory.
func (r *Region) Bytes() []byte { return r.mem }

// Remote is what a peer needs.
func (r *Region) Remote() transport.RemoteRegion { return r.remote }

// Close ends the registration.
func (r *Region) Close() error {
	n := r.transport.network
	if err := n.suffer(AtDeregister, r.transport, 0, zero); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.numUses > 0 {
		return fmt.Errorf("region with %d pieces in work requests: %w", r.numUses, transport.ErrBusy)
	}
	r.closed = true
	delete(r.transport.regions, r.remote.Key)
	r.transport.counts.Regions--
	r.transport.counts.LockedBytes -= int64(len(r.mem))
	n.forget(func(w *lateWrite) bool { return w.region == r })
	return nil
}

// reach returns what a peer may touch, nil if it may not.
func (t *Transport) reach(at transport.RemoteRegion, off uint64, n int, need transport.Access) []byte {
	r := t.regions[at.Key]
	if r == nil || r.access&need == 0 {
		return nil
	}
	// All in offsets from the region's own address, so that sums that go
	// round are far outside.
	off += at.Addr - r.remote.Addr
	size := uint64(len(r.mem))
	if off > size || uint64(n) > size-off {
		return nil
	}
	return r.mem[off : off+uint64(n)]
}
