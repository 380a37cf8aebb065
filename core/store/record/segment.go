package record

import (
	"encoding/binary"
	"fmt"
)

const (
	segmentMagic = 0x4753574d // "MWSG"
	footerMagic  = 0x5446574d // "MWFT"
	segmentCheck = 32         // where the check of a segment's header stands
)

// Segment is what the first page of a segment says.
type Segment struct {
	Life  uint64 // a random number, another one each time that the segment is begun
	Bytes int64
}

// PutSegment writes the first page.
func (s *Secret) PutSegment(page []byte, g Segment) {
	clear(page[:PageBytes])
	le := binary.LittleEndian
	le.PutUint32(page, segmentMagic)
	le.PutUint32(page[4:], version)
	le.PutUint64(page[8:], g.Life)
	le.PutUint64(page[16:], uint64(g.Bytes))
	check := s.checkOf(forSegment, page[:segmentCheck])
	copy(page[segmentCheck:], check[:])
}

// GetSegment reads the first page. ErrNone if the segment is empty, damaged, of another store or
// of another size.
func (s *Secret) GetSegment(page []byte, sizeBytes int64) (Segment, error) {
	le := binary.LittleEndian
	if len(page) < PageBytes || le.Uint32(page) != segmentMagic || le.Uint32(page[4:]) != version {
		return Segment{}, ErrNone
	}
	check, rest := page[segmentCheck:segmentCheck+checkBytes], page[segmentCheck+checkBytes:PageBytes]
	if s.checkOf(forSegment, page[:segmentCheck]) != [checkBytes]byte(check) || !isZero(rest) {
		return Segment{}, ErrNone
	}
	g := Segment{Life: le.Uint64(page[8:]), Bytes: int64(le.Uint64(page[16:]))}
	if g.Bytes != sizeBytes {
		return Segment{}, fmt.Errorf("%w: a segment of %d bytes, of %d", ErrNone, g.Bytes, sizeBytes)
	}
	return g, nil
}
