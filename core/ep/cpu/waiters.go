package cpu

import (
	"sync"

	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// waiters are the waits of this rank that hold up a caller, one entry for each
// kind of each slot. The rank's control page shows what they have in common: all
// ranks that any of them waits for, and when the first of them began. A wait
// that is cut into slices stays there between two slices. If the caller does not
// come back, the beat shows that.
type waiters struct {
	mu      sync.Mutex
	entries []waiter
	shown   rankset.Set // what the control page must hold: waits_for
	since   uint64
}

type waiter struct {
	st    *op.Op      // the operation that is waited for
	ranks rankset.Set // waited for; 0: no wait
	since int64       // on the clock that all ranks of a host share (core/telemetry)
}

func newWaiters(slots int) waiters { return waiters{entries: make([]waiter, slots*numKinds)} }

func entryOf(s *slot, k kind) int { return s.index*numKinds + int(k) }

// blame records the ranks that a wait for an operation waits for now, and tells the
// peers. No ranks: the wait has ended; that counts only if the entry still belongs to it.
func (ws *waiters) blame(entry int, st *op.Op, ranks rankset.Set, since int64, own *suspicion.Peer) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	e := &ws.entries[entry]
	if (e.ranks == ranks && e.st == st) || (ranks.Empty() && e.st != st) {
		return
	}
	*e = waiter{st, ranks, since}
	all, first := rankset.Set{}, int64(0)
	for _, e := range ws.entries {
		if !e.ranks.Empty() {
			all = all.Or(e.ranks)
			if first == 0 || e.since < first {
				first = e.since
			}
		}
	}
	ws.shown, ws.since = all, uint64(first)
	own.Since().Store(ws.since)
	own.WaitsFor().Store(ws.shown.Word())
}

// intact reports whether the control page still says what this rank has stored.
func (ws *waiters) intact(own *suspicion.Peer) (held, stored uint64, ok bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if held := own.WaitsFor().Load(); held != ws.shown.Word() {
		return held, ws.shown.Word(), false
	}
	held = own.Since().Load()
	return held, ws.since, held == ws.since
}

// restore stores again what the control page must say.
func (ws *waiters) restore(own *suspicion.Peer) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	own.Since().Store(ws.since)
	own.WaitsFor().Store(ws.shown.Word())
}

// forgetWaits ends the waits for the operations of a slot.
func (b *Buffer) forgetWaits(s *slot) {
	for k := range kind(numKinds) {
		b.waits.blame(entryOf(s, k), s.call(k).st, rankset.Set{}, 0, &b.peers[b.self])
	}
}
