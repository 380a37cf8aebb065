package gpu

import "github.com/moewire/moewire/core/device/cuda"

// receiveOn and reduceOn launch what a slot's earlier call owes because another
// call needs it first, on that call's stream. The caller has put that stream
// behind the earlier call before this one began: nothing that is launched on the
// old stream from now on comes before what this call launches.
func (b *Buffer) receiveOn(s *slot, stream uint64) error {
	if s.received {
		return nil
	}
	b.move(&s.dispatch.Call, stream)
	return b.receive(s)
}

func (b *Buffer) reduceOn(s *slot, stream uint64) error {
	if !s.pending {
		return nil
	}
	b.move(&s.combine.Call, stream)
	return b.reduce(s)
}

// move has the rest of a call launched on another stream. If one of the two is
// being captured and the other is not, it stays: a part of what runs must not be
// replayed, nor one of a graph be missing there. The caller orders graph and
// stream.
func (b *Buffer) move(c *cuda.Call, stream uint64) {
	if c.Stream != stream && b.engine.Captures(c.Stream) == b.engine.Captures(stream) {
		c.Stream = stream
	}
}
