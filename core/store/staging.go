package store

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/moewire/moewire/core/store/record"
)

// staging is memory in which a record is put together that is then written to a disk.
type staging struct{ record []byte }

// Bounds of what is kept to be used again, and the smallest of it.
const (
	minStagingBytes  = record.PageBytes
	keptStagingBytes = 16 << 20
	keptWritings     = 64
)

// stagings are those that are kept, by their size. StagedBytes bounds those that are lent.
type stagings struct {
	mu    sync.Mutex
	free  [4 * 64][]*staging
	bytes int // of all that are free
}

// stagingSize is the size of the memory for a record, and the number of that size. There are four from one power of two to the next:
// a record, which is a little longer than its block, takes a quarter more at most.
func stagingSize(recordBytes int64) (bytes int64, number int) {
	least := max(recordBytes, minStagingBytes)
	power := bits.Len64(uint64(least - 1))
	quarter := power - 3                            // of the power of two below
	quarters := (least + 1<<quarter - 1) >> quarter // 5 to 8
	return quarters << quarter, 4*power + int(quarters) - 8
}

func (all *stagings) get(bytes int64) *staging {
	bytes, number := stagingSize(bytes)
	if st := all.kept(number); st != nil {
		return st
	}
	return &staging{make([]byte, bytes)}
}

func (all *stagings) kept(number int) *staging {
	all.mu.Lock()
	defer all.mu.Unlock()
	free := all.free[number]
	if len(free) == 0 {
		return nil
	}
	st := free[len(free)-1]
	all.free[number] = free[:len(free)-1]
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
	_, number := stagingSize(int64(len(st.record)))
	all.free[number] = append(all.free[number], st)
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
	bytes, _ := stagingSize(w.block.RecordBytes())
	if err := s.mayStage(bytes); err != nil {
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
	bytes := int64(len(w.staged.record))
	s.stagings.put(w.staged)
	w.staged, w.buf = nil, nil
	s.mu.Lock()
	s.staged -= bytes
	s.mu.Unlock()
}
