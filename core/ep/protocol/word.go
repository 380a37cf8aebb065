package protocol

import "sync/atomic"

// Ensure stores a value that is not there yet. It is for words that no other rank
// writes at the same time. Most of them keep their value from operation to operation,
// and a store would take the cache line away from every rank that reads it.
func Ensure(w *atomic.Uint64, v uint64) {
	if w.Load() != v {
		w.Store(v)
	}
}
