package store

import (
	"fmt"
	"math/bits"
	"sync"
)

// staging is memory in which a record is put together that is then written to a disk.
type staging struct{ record []byte }

// Bounds of what is kept to be used again.
const (
	keptStagingBytes = 16 << 20
	keptWritings     = 64
)

// stagings are those that are kept, by the power of two of their size. StagedBytes bounds those that are lent.
type stagings struct {
	mu    sync.Mutex
	free  [64][]*staging
	bytes int // of all that are free
}

func (all *stagings) get(bytes int64) *staging {
	size := bits.Len64(uint64(bytes - 1))
	if st := all.kept(size); st != nil {
		return st
	}
	return &staging{make([]byte, 1<<size)}
}

func (all *stagings) kept(size int) *staging {
	all.mu.Lock()
	defer all.mu.Unlock()
	free := all.free[size]
	if len(free) == 0 {
		return nil
	}
	st := free[len(free)-1]
	all.free[size] = free[:len(free)-1]
	all.bytes -= len(st.record)
	return st
}

func (all *stagings) put(st *staging) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.bytes+len(st.record) > keptStagingBytes {
		return
	}
	all.bytes += len(st.record)
	size := bits.Len64(uint64(len(st.record) - 1))
	all.free[size] = append(all.free[size], st)
}

// writings are those that are kept.
type writings struct {
	mu   sync.Mutex
	free []*Writing
}

// get returns an empty Writing.
func (all *writings) get(s *Store) *Writing {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.free) == 0 {
		return &Writing{store: s}
	}
	w := all.free[len(all.free)-1]
	all.free = all.free[:len(all.free)-1]
	w.at, w.placed, w.buf, w.staged, w.ended, w.result = spot{}, false, nil, nil, false, nil
	return w
}

func (all *writings) put(w *Writing) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if len(all.free) < keptWritings {
		all.free = append(all.free, w)
	}
}

// stage lends memory in which a block is put together.
func (s *Store) stage(w *Writing) error {
	if err := s.mayStage(int64(w.block.PayloadBytes)); err != nil {
		return err
	}
	w.staged = s.stagings.get(w.block.RecordBytes())
	off := w.payloadOff()
	w.buf = w.staged.record[off : off+int64(w.block.PayloadBytes) : w.block.RecordBytes()]
	return nil
}

// mayStage takes a part of StagedBytes.
func (s *Store) mayStage(bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.staged+bytes > s.cfg.StagedBytes {
		s.counts.wouldBlock.Add(1)
		return fmt.Errorf("%w: %d bytes, of %d at most", ErrWouldBlock, s.staged, s.cfg.StagedBytes)
	}
	s.staged += bytes
	return nil
}

// rest is a staged record behind its header, up to a whole page: the disk need not be read for the part of a page.
func (w *Writing) rest() []byte {
	clear(w.buf[len(w.buf):cap(w.buf)])
	return w.buf[:cap(w.buf)]
}

// unstage takes the memory back.
func (s *Store) unstage(w *Writing) {
	s.stagings.put(w.staged)
	w.staged, w.buf = nil, nil
	s.mu.Lock()
	s.staged -= int64(w.block.PayloadBytes)
	s.mu.Unlock()
}
