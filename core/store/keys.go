package store

import (
	"sync"

	"github.com/moewire/moewire/core/store/record"
)

// keys are those that are being written: one holder of a key at a time, and others of other keys. There are as many as
// calls of Commit that run.
type keys struct {
	mu   sync.Mutex
	busy map[record.Hash]chan struct{} // closed once the holder ends; nil while no other one waits
}

func (k *keys) lock(h record.Hash) {
	for {
		k.mu.Lock()
		held, is := k.busy[h]
		if !is {
			if k.busy == nil {
				k.busy = map[record.Hash]chan struct{}{}
			}
			k.busy[h] = nil
			k.mu.Unlock()
			return
		}
		if held == nil {
			held = make(chan struct{})
			k.busy[h] = held
		}
		k.mu.Unlock()
		<-held
	}
}

func (k *keys) unlock(h record.Hash) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if waited := k.busy[h]; waited != nil {
		close(waited)
	}
	delete(k.busy, h)
}
