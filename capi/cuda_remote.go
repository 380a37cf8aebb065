package main

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/transport/cudaring"
)

// openGPU opens the device of a buffer on CUDA. This happens before the rendezvous,
// because messages to ranks of other hosts lie in memory that the device sees.
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

// collectLinks adds facts that only an open device knows to the parameters that the ranks
// compare.
func (b *buffer) collectLinks() (err error) {
	if b.onGPU.cfg.Links, err = b.onGPU.dev.Links(); err == nil {
		b.open.Shm.Params, err = b.params(ep.Standing{})
	}
	return err
}

// remoteWords say where the messages of a rank of another host lie.
func remoteWords(p path, rings *cudaring.Rings) string {
	if where := rings.Where(p.Carrier); where != "" {
		return p.Why + "; messages in " + where
	}
	return p.Why
}

// freeRings frees the message memory that earlier rendezvous have left. No work that the
// buffer has launched may be running.
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
