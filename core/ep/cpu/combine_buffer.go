package cpu

import "time"

// CombineBuffer waits, for one slice at most (negative: no limit), until no rank
// reads the outputs of an earlier combine of operation n. It returns where the
// next ones go: bf16 [L, C, Hidden]. ErrInProgress: call again. A reader that is
// late beyond the deadline of that combine is taken out of the group, as in every
// other wait.
func (b *Buffer) CombineBuffer(n uint64, slice time.Duration) ([]byte, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	limit := b.limitOf(slice)
	for {
		t, x, err := b.startReaderWait(n)
		if err != nil || x != nil {
			return x, err
		}
		if err := b.clear(t, limit); err != nil {
			return nil, err
		}
	}
}

// startReaderWait returns the buffer if no rank reads it, else the task to wait for.
func (b *Buffer) startReaderWait(n uint64) (t task, x []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin(); err != nil {
		return task{}, nil, err
	}
	s, err := b.find(n)
	if err != nil {
		return task{}, nil, err
	}
	if t, yes := b.inWay(s); yes {
		return t, nil, nil
	}
	if b.readers(s).Minus(b.out()).Empty() {
		return task{}, s.dispatch.res.CombineX, nil
	}
	if !s.readerWait.pending() {
		s.readerWait.begin(s.combine.timeout)
		b.rec.beginReaderWait(s)
	}
	return b.hold(s, kindReaders), nil, nil
}
