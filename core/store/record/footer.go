package record

import (
	"encoding/binary"
	"fmt"
)

// Entry is what a footer says of one record.
type Entry struct {
	Hash, Parent Hash
	Stamp        uint64 // when it was last used
	Off          uint32 // in pages
	PayloadBytes uint32
	Namespace    uint16 // its number in the footer
	KeyBytes     uint16
}

// EntryBytes is the length of an entry of a footer.
const EntryBytes = 56

const (
	tailBytes     = PageBytes
	tailCheck     = 64
	digestBytes   = len(Digest{})
	maxNamespaces = 1<<16 - 1
	// alive and dead are the values of an entry's mark. Anything but alive is dead: a mark is
	// overwritten in place when a block is deleted, and no check covers it. One that is neither is damaged.
	alive, dead = 0xa5, 0
)

// FooterBytes is the room for a footer of so many records of so many namespaces: whole pages.
func FooterBytes(numEntries, numNamespaces int) int64 {
	return footerBody(numEntries, numNamespaces) + tailBytes
}

func footerBody(numEntries, numNamespaces int) int64 {
	return roundUp(int64(numEntries)*(EntryBytes+1)+int64(numNamespaces*digestBytes), PageBytes)
}

// Footer is what a segment ends with once nothing is written to it any more.
type Footer struct {
	Seq        uint64 // larger than that of any record of the segment
	Namespaces []Digest
	Entries    []Entry
	NumDamaged int // entries with a damaged mark: they are dead
}

// PutFooter makes the footer of a segment: the last bytes of it.
//
//	entries | namespaces | marks, up to a page | tail: magic, life, counts, check
func (s *Secret) PutFooter(life uint64, f *Footer) []byte {
	out := make([]byte, FooterBytes(len(f.Entries), len(f.Namespaces)))
	le := binary.LittleEndian
	for i := range f.Entries {
		e, b := &f.Entries[i], out[i*EntryBytes:]
		copy(b, e.Hash[:])
		copy(b[16:], e.Parent[:])
		le.PutUint64(b[32:], e.Stamp)
		le.PutUint32(b[40:], e.Off)
		le.PutUint32(b[44:], e.PayloadBytes)
		le.PutUint16(b[48:], e.Namespace)
		le.PutUint16(b[50:], e.KeyBytes)
	}
	for i, d := range f.Namespaces {
		copy(out[len(f.Entries)*EntryBytes+i*digestBytes:], d[:])
	}
	marked := len(f.Entries)*EntryBytes + len(f.Namespaces)*digestBytes
	for i := range f.Entries {
		out[marked+i] = alive
	}
	tail := out[len(out)-tailBytes:]
	le.PutUint32(tail, footerMagic)
	le.PutUint32(tail[4:], version)
	le.PutUint64(tail[8:], life)
	le.PutUint32(tail[16:], uint32(len(f.Entries)))
	le.PutUint32(tail[20:], uint32(len(f.Namespaces)))
	le.PutUint64(tail[24:], f.Seq)
	check := s.checkOf(forFooter, out[:marked], tail[:tailCheck])
	copy(tail[tailCheck:], check[:])
	return out
}

// Tail is what the last page of a segment says of its footer.
type Tail struct {
	NumEntries, NumNamespaces int
}

// Bytes is the length of the whole footer.
func (t Tail) Bytes() int64 { return FooterBytes(t.NumEntries, t.NumNamespaces) }

// Tail is what the footer's own tail says.
func (f *Footer) Tail() Tail { return Tail{len(f.Entries), len(f.Namespaces)} }

// GetTail reads the last page of a segment. ErrNone if the segment has no footer of this life.
// Only GetFooter's check says that it is genuine.
func GetTail(page []byte, life uint64, segmentBytes int64) (Tail, error) {
	le := binary.LittleEndian
	if len(page) < tailBytes || le.Uint32(page) != footerMagic || le.Uint32(page[4:]) != version || le.Uint64(page[8:]) != life {
		return Tail{}, ErrNone
	}
	entries, namespaces := le.Uint32(page[16:]), le.Uint32(page[20:])
	if int64(entries) > segmentBytes/PageBytes || namespaces > maxNamespaces {
		return Tail{}, ErrNone
	}
	t := Tail{int(entries), int(namespaces)}
	if t.Bytes() > segmentBytes-PageBytes {
		return Tail{}, ErrNone
	}
	return t, nil
}

// holds reports whether a footer is as it was written, but for its marks.
func (s *Secret) holds(b []byte, marks, end int) bool {
	tail := b[len(b)-tailBytes:]
	check, rest := tail[tailCheck:tailCheck+checkBytes], tail[tailCheck+checkBytes:]
	return s.checkOf(forFooter, b[:marks], tail[:tailCheck]) == [checkBytes]byte(check) &&
		isZero(rest) && isZero(b[end:len(b)-tailBytes])
}

// GetFooter reads a whole footer. Entries of deleted blocks have an Off of 0.
func (s *Secret) GetFooter(b []byte, t Tail) (*Footer, error) {
	marked := t.NumEntries*EntryBytes + t.NumNamespaces*digestBytes
	if int64(len(b)) != t.Bytes() {
		return nil, ErrNone
	}
	tail := b[len(b)-tailBytes:]
	if !s.holds(b, marked, marked+t.NumEntries) {
		return nil, fmt.Errorf("%w: a footer whose check does not hold", ErrNone)
	}
	f := &Footer{Seq: binary.LittleEndian.Uint64(tail[24:]), Namespaces: make([]Digest, t.NumNamespaces), Entries: make([]Entry, t.NumEntries)}
	for i := range f.Namespaces {
		f.Namespaces[i] = Digest(b[t.NumEntries*EntryBytes+i*digestBytes:])
	}
	for i := range f.Entries {
		f.Entries[i] = GetEntry(b[i*EntryBytes:])
		if mark := b[marked+i]; mark != alive {
			f.Entries[i].Off = 0
			if mark != dead {
				f.NumDamaged++
			}
		}
		if int(f.Entries[i].Namespace) >= t.NumNamespaces {
			return nil, ErrNone
		}
	}
	return f, nil
}

// GetEntry reads one entry; its mark stands elsewhere.
func GetEntry(b []byte) Entry {
	le := binary.LittleEndian
	return Entry{
		Hash: Hash(b), Parent: Hash(b[16:]), Stamp: le.Uint64(b[32:]),
		Off: le.Uint32(b[40:]), PayloadBytes: le.Uint32(b[44:]), Namespace: le.Uint16(b[48:]), KeyBytes: le.Uint16(b[50:]),
	}
}

// MarkOff is where the mark of an entry stands, from the end of the segment: a byte that is set to
// Dead when its block is deleted.
func (t Tail) MarkOff(entry int) int64 {
	return t.Bytes() - int64(t.NumEntries*EntryBytes+t.NumNamespaces*digestBytes+entry)
}

// EntryOff is where an entry stands, from the end of the segment: EntryBytes, for GetEntry.
func (t Tail) EntryOff(entry int) int64 { return t.Bytes() - int64(entry*EntryBytes) }

// Dead is the mark of a deleted block.
var Dead = []byte{dead}
