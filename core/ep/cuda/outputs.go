package cuda

// CombineX is where outputs of a live handle go so that Combine need not copy them. If
// the handle was combined, the stream waits until no rank reads there any more: work
// behind that may write. The deadline is that of the latest combine. If that combine or
// the dispatch has a phase pending, the phase comes first, as for Combine.
func (b *Buffer) CombineX(h Handle, stream uint64) (at uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.live(h)
	if err != nil {
		return 0, err
	}
	if s.combines == 0 {
		return b.combineX(s), nil
	}
	if err := b.reduceOn(s, stream); err != nil {
		return 0, err
	}
	return b.combineX(s), b.awaitReaders(s, stream)
}

// awaitReaders uses the description of the latest combine, which has launched all that
// it was for. What its caller gave, but for the slot, may be gone.
func (b *Buffer) awaitReaders(s *slot, stream uint64) error {
	c := &s.combine.Call
	c.Stream, c.Active, c.WaitNs = stream, 0, 0
	return b.launched(b.engine.AwaitReaders(c))
}

func (b *Buffer) combineX(s *slot) uint64 {
	return b.engine.Slab(s.dispatch.Slot) + uint64(s.slab.YOff)
}
