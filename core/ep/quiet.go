package ep

import "time"

// CombineBuffer waits, for one slice at most (negative: no limit), until
// nobody reads the outputs of an earlier combine of operation n, and returns
// where the next ones go: bf16 [L, C, Hidden]. ErrInProgress: call again.
func (b *Buffer) CombineBuffer(n uint64, slice time.Duration) ([]byte, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.users.Done()
	if err := b.finishBefore(n); err != nil {
		return nil, err
	}
	t, err := b.startQuiet(n)
	if err != nil {
		return nil, err
	}
	if err := b.drive(t, PhaseDone, slice); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.find(n)
	if err != nil {
		return nil, err
	}
	return s.dispatch.res.CombineX, nil
}

// startQuiet begins, or goes on with, a wait for the last combine's readers.
func (b *Buffer) startQuiet(n uint64) (task, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.find(n)
	if err != nil {
		return task{}, err
	}
	if !s.quiet.pending() {
		s.quiet.begin(-1)
		s.quiet.escaped = true // several threads may wait for it
	}
	return b.taskOf(s, kindQuiet), nil
}
