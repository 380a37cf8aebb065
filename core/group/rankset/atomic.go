package rankset

import "sync/atomic"

// Atomic is a set that goroutines of one process share. The zero value is empty.
type Atomic struct{ word atomic.Uint64 }

// Load returns the set.
func (a *Atomic) Load() Set { return Set{a.word.Load()} }

// Store replaces the set.
func (a *Atomic) Store(s Set) { a.word.Store(s.word) }
