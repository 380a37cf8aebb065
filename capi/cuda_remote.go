package main

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/transport/cudaring"
)

// openGPU opens the device of a buffer on CUDA. It comes before the rendezvous:
// messages to ranks of other hosts lie in memory that the device sees.
func (b *buffer) openGPU() error {
	if b.onGPU == nil {
		return nil
	}
	if err := b.onGPU.open(); err != nil {
		return err
	}
	b.open.Rings = b.onGPU.rings.Make
	return b.given(b.collectLinks())
}

// collectLinks puts into what the ranks compare what only an open device knows.
func (b *buffer) collectLinks() (err error) {
	if b.onGPU.cfg.Links, err = b.onGPU.dev.Links(); err == nil {
		b.open.Shm.Params, err = b.params(ep.Standing{})
	}
	return err
}

// remoteWords say of a rank of another host where its messages lie.
func remoteWords(p path, rings *cudaring.Rings) string {
	if where := rings.Where(p.Carrier); where != "" {
		return p.Why + "; messages in " + where
	}
	return p.Why
}

// freeRings frees what earlier rendezvous have left. Nothing that the buffer has
// launched runs.
func (b *buffer) freeRings() error {
	g := b.onGPU
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rings == nil {
		return nil
	}
	return g.rings.Free()
}
