package mapped

import "github.com/moewire/moewire/core/transport"

// Kill does what the kernel does when a process ends: connections and mappings
// go, and nobody is told.
func Kill(victim transport.Transport) {
	t := victim.(*Transport)
	t.keeper.close()
	t.all(func(e *Endpoint) {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, o := range e.offers {
			t.keeper.drop(o.conn)
			o.peer.close()
		}
		t.keeper.drop(e.conn)
		e.peer.close()
		e.peer = nil
		_ = e.lane.close()
	})
	for i := range t.table.memories {
		for p := &t.table.memories[i]; p.numUses > 0; p.numUses-- {
			p.memory.letGo()
		}
	}
	t.isClosed.Store(true)
	t.free()
}
