package store

import (
	"fmt"
	"sync"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// erasures are records that have to be made none, because they must not be found when the store is opened next: of deleted
// blocks, of blocks that could not be put, and of what was moved away. A record with an offset of 0 stands for all of
// its segment.
type erasures struct {
	mu   sync.Mutex
	open []index.Block
}

// erase makes a record none, or leaves that to the next flush if the medium fails. The caller has added to the refs of its
// segment, so that it is not begun anew before; erase takes that back. It returns why the medium failed.
func (s *Store) erase(b *index.Block) error {
	if s.medium.Lasts() {
		if err := s.forget(b); err != nil {
			err = fmt.Errorf("a record could not be overwritten, which is tried again: %w", err)
			s.note(err)
			s.erasures.mu.Lock()
			s.erasures.open = append(s.erasures.open, *b)
			s.erasures.mu.Unlock()
			return err
		}
	}
	if b.Off != 0 {
		s.letGo(b)
		return nil
	}
	s.copies.forget(b.Segment)
	s.letGo(b)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments[b.Segment].eraseDue = false
	s.turn() // the segment is free
	return nil
}

// eraseAll tries again what erase has left.
func (s *Store) eraseAll() error {
	s.erasures.mu.Lock()
	left := s.erasures.open
	s.erasures.open = nil
	s.erasures.mu.Unlock()
	for i := range left {
		_ = s.erase(&left[i]) // it is counted below
	}
	s.erasures.mu.Lock()
	defer s.erasures.mu.Unlock()
	if n := len(s.erasures.open); n > 0 {
		return fmt.Errorf("%d records could not be overwritten: deleted blocks may be there again after the next start", n)
	}
	return nil
}

// forget overwrites a block's record, and what the footer says of it. A lease may be reading the payload, which stays;
// the header it has read already.
func (s *Store) forget(b *index.Block) error {
	g := &s.segments[b.Segment]
	g.disk.Lock()
	defer g.disk.Unlock()
	off := int64(b.Off) * record.PageBytes
	if err := s.overwrite(int(b.Segment), off, nothing(b)); err != nil {
		return err
	}
	err := s.mark(g, b)
	s.dirty.Add(record.PageBytes) // behind both writes: a flush in between leaves them to the next one
	return err
}

// nothing is what a record's header is overwritten with. A segment's first page is overwritten as a whole: that works though it
// cannot be read.
func nothing(b *index.Block) []byte {
	if b.Off == 0 {
		return make([]byte, record.PageBytes)
	}
	return make([]byte, record.HeaderBytes)
}

// mark says in a segment's footer, if it has one, that a block is dead. A segment may have several records of one key.
func (s *Store) mark(g *segment, b *index.Block) error {
	end, entry := s.medium.SegmentBytes(), make([]byte, record.EntryBytes)
	for i := range g.footer.NumEntries {
		if b.Off == 0 || g.placed[i] != b.Hash {
			continue
		}
		if err := s.medium.Read(int(b.Segment), end-g.footer.EntryOff(i), entry); err != nil {
			s.counts.readErrors.Add(1)
			return s.dropFooter(b.Segment)
		}
		if record.GetEntry(entry).Off != b.Off {
			continue
		}
		err := s.writeTo(int(b.Segment), end-g.footer.MarkOff(i), record.Dead)
		if err != nil && !s.isReadable(int(b.Segment), end-g.footer.MarkOff(i)) {
			return s.dropFooter(b.Segment)
		}
		return err
	}
	return nil
}

// overwrite writes a part of a page. Of a page that cannot be read the rest becomes zeros: it can be written only as a whole.
func (s *Store) overwrite(segment int, off int64, part []byte) error {
	err := s.writeTo(segment, off, part)
	if err == nil || s.isReadable(segment, off) {
		return err
	}
	page := make([]byte, record.PageBytes)
	in := off % record.PageBytes
	copy(page[in:], part)
	return s.writeTo(segment, off-in, page)
}

// isReadable reports whether the page that a byte is in can be read. One that cannot be is counted.
func (s *Store) isReadable(segment int, off int64) bool {
	err := s.medium.Read(segment, off-off%record.PageBytes, make([]byte, record.PageBytes))
	if err != nil {
		s.counts.readErrors.Add(1)
	}
	return err == nil
}
