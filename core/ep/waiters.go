package ep

import (
	"sync"
	"time"
)

// waiters are the waits of this rank that hold up a caller, one entry each.
// Its control page shows what they have in common: all ranks that any of them
// waits for, and when the first of them began.
type waiters struct {
	mu      sync.Mutex
	entries []waiter
}

type waiter struct {
	used  bool
	ranks uint64 // waited for
	since int64  // as UnixNano: a clock that all ranks of a host share
}

// enter takes an entry for a wait that begins now.
func (ws *waiters) enter(now time.Time) int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	fresh := waiter{used: true, since: now.UnixNano()}
	for i := range ws.entries {
		if !ws.entries[i].used {
			ws.entries[i] = fresh
			return i
		}
	}
	ws.entries = append(ws.entries, fresh)
	return len(ws.entries) - 1
}

// blame says whom the wait waits for by now, and tells the peers.
func (ws *waiters) blame(entry int, ranks uint64, own *peer) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.entries[entry].ranks = ranks
	all, since := uint64(0), int64(0)
	for _, e := range ws.entries {
		if e.used && e.ranks != 0 {
			all |= e.ranks
			if since == 0 || e.since < since {
				since = e.since
			}
		}
	}
	own.since().Store(uint64(since))
	own.waitsFor().Store(all)
}

func (ws *waiters) leave(entry int) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.entries[entry].used = false
}
