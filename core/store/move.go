package store

import (
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// errSource means that a record cannot be moved because it cannot be read, or is damaged.
var errSource = errors.New("a block could not be read to be moved")

// move writes a block's record again, in the open segment. It reports whether the block needs its old place no more; false
// if there is no other one. A block that cannot be read stays where it is, to be evicted.
func (s *Store) move(b *index.Block) bool {
	s.mu.Lock()
	to, err := s.place(b.Hash, b.Namespace, b.RecordBytes(), forMove)
	s.mu.Unlock()
	if err != nil {
		return false
	}
	defer s.written(to.segment)
	if err := s.moveTo(b, to); err != nil {
		s.note(fmt.Errorf("a block could not be moved: %w", err))
		return errors.Is(err, errSource)
	}
	return true
}

// moveTo holds the disk of the segment that the block is in: a delete overwrites the record either before it is copied, or
// together with its copy.
func (s *Store) moveTo(b *index.Block, to spot) error {
	from := &s.segments[b.Segment]
	from.disk.Lock()
	defer from.disk.Unlock()
	if now, found := s.index.Get(b.Hash); !found || now.Segment != b.Segment || now.Off != b.Off {
		return nil // it was deleted meanwhile
	}
	if err := s.copyRecord(b, to); err != nil {
		s.eraseCopy(b, to)
		return err
	}
	s.dirty.Add(b.RecordBytes())
	s.leaveCopy(b)
	there := index.Block{Segment: uint16(to.segment), Off: uint32(to.off / record.PageBytes)}
	if !s.changePlace(b, &there) { // its delete waits for this segment's disk
		s.eraseCopy(b, to)
		return nil
	}
	s.counts.moved.Add(uint64(b.RecordBytes()))
	return nil
}

// eraseCopy makes a record none that a block was to be moved to.
func (s *Store) eraseCopy(b *index.Block, to spot) {
	dead := *b
	dead.Segment, dead.Off = uint16(to.segment), uint32(to.off/record.PageBytes)
	s.segments[to.segment].refs.Add(1)
	_ = s.erase(&dead) // the next flush tries again
}

// copyRecord reads a record and writes it with another place and number.
func (s *Store) copyRecord(b *index.Block, to spot) error {
	w := s.writings.get(s)
	defer s.writings.put(w)
	off := int64(b.Off) * record.PageBytes
	whole := record.PayloadOff(int(b.KeyBytes)) + int64(b.PayloadBytes)
	src := s.medium.Bytes(int(b.Segment), off, whole)
	if src == nil {
		staged := s.stagings.get(b.RecordBytes())
		defer s.stagings.put(staged)
		src = staged.record[:whole:b.RecordBytes()]
		if err := s.medium.Read(int(b.Segment), off, src); err != nil {
			s.counts.readErrors.Add(1)
			return fmt.Errorf("%w: %w", errSource, err)
		}
	}
	h, err := s.secret.Get(src, record.Place{Life: s.lifeOf(b), Off: off})
	if err != nil {
		return fmt.Errorf("%w: %w", errSource, err)
	}
	w.at, w.header, w.buf = to, h, src[record.PayloadOff(int(b.KeyBytes)):]
	return s.writeRecord(w)
}
