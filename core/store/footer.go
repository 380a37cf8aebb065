package store

import (
	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// dropFooter makes a footer none of which a page cannot be read, so that nothing can be marked in it: the next Open reads the
// segment's records. So those that are no blocks become none first: a footer hides the records of blocks that were deleted
// shortly before a power cut. The caller holds the segment's disk.
func (s *Store) dropFooter(segment uint16) error {
	if err := s.sync(int(segment)); err != nil {
		return err // what was moved from here may be nowhere else yet
	}
	if err := s.scrub(segment); err != nil {
		return err
	}
	if err := s.sync(int(segment)); err != nil {
		return err
	}
	page := make([]byte, record.PageBytes) // written as a whole it needs no read
	if err := s.writeTo(int(segment), s.medium.SegmentBytes()-record.PageBytes, page); err != nil {
		return err
	}
	s.segments[segment].footer = record.Tail{}
	return nil
}

// scrub overwrites the records of a segment that are no blocks, and pages outside of blocks that cannot be read.
func (s *Store) scrub(segment uint16) error {
	blocks := s.blocksOf(segment)
	head := make([]byte, record.HeaderBytes+record.MaxKeyBytes)
	end := s.medium.SegmentBytes() - s.segments[segment].footer.Bytes()
	for off := int64(record.PageBytes); off < end; {
		if n := blocks[off]; n > 0 {
			off += n
			continue
		}
		dead := index.Block{Segment: segment, Off: uint32(off / record.PageBytes)}
		err := s.medium.Read(int(segment), off, head)
		if err == nil {
			_, err = s.secret.Get(head, record.Place{Life: s.lifeOf(&dead), Off: off})
			if err != nil {
				off += record.PageBytes // none
				continue
			}
		}
		if err := s.overwrite(int(segment), off, nothing(&dead)); err != nil {
			return err
		}
		off += record.PageBytes
	}
	return nil
}

// blocksOf are the places of a segment's blocks, and the bytes that each of them takes.
func (s *Store) blocksOf(segment uint16) map[int64]int64 {
	blocks := map[int64]int64{}
	for _, h := range s.segments[segment].placed {
		if b, found := s.index.Get(h); found && b.Segment == segment {
			blocks[int64(b.Off)*record.PageBytes] = b.RecordBytes()
		}
	}
	return blocks
}
