package shmem

import "github.com/moewire/moewire/core/transport"

// ownerDied is the kernel's mark, FUTEX_OWNER_DIED.
const ownerDied = 0x40000000

// Kill does what the kernel does when a process ends: connections and mappings go, and no
// peer is told.
func Kill(killed transport.Transport) {
	t := killed.(*Transport)
	t.connManager.close()
	t.table.word(tableHolderOff).Or(ownerDied) // the connection manager has let it go, as it does at Close
	t.all(func(e *Endpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, o := range e.offers {
			t.connManager.drop(o.conn)
			o.peer.close()
		}
		t.connManager.drop(e.conn)
		e.peer.close()
		e.peer = nil
		_ = e.lane.close()
	})
	for i := range t.table.memories {
		for p := &t.table.memories[i]; p.numUses > 0; p.numUses-- {
			p.memory.releaseRegion()
		}
	}
	t.isClosed.Store(true)
	t.free()
}
