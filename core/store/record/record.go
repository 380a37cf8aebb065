// Package record is how blocks lie in a segment, byte by byte. A record describes itself: with
// it, a store that was killed finds its blocks again. docs/store.md has the tables.
//
//	segment:  header page | record | record | ... | footer, in the last pages
//	record:   header | key | payload, from an offset of 64 on | up to a page of 4 KiB
//
// Everything here is arithmetic on bytes. What is read from a disk may be torn, flipped, or of
// an earlier life of the segment: a header is believed only if its check holds, which covers
// the place that it lies at.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/store/tag"
)

// Sizes and bounds.
const (
	PageBytes   = 4096
	HeaderBytes = 128 // of a record, in front of its key: usedBytes, and room for later, which is zeros
	MaxKeyBytes = 512
	// MaxPayloadOff is where the payload of the longest key begins.
	MaxPayloadOff = HeaderBytes + MaxKeyBytes
	// MaxPayloadBytes is the longest payload that a record can describe.
	MaxPayloadBytes = 1<<32 - 1
	payloadAlign    = 64
	checkedBytes    = 88
	usedBytes       = checkedBytes + checkBytes
	version         = 1
	recordMagic     = 0x4b42574d // "MWBK"
)

// ErrNone means that there is no record: the bytes are not one, or are damaged, or belong to
// another place.
var ErrNone = errors.New("no record")

// Hash names a block in the index: 128 bits of a keyed hash of its namespace and key.
type Hash [16]byte

// Digest names a namespace. It ends with that of its tenant.
type Digest [32]byte

// Tenant names the owner of namespaces: they have it in common.
type Tenant = [16]byte

// Tenant is the owner of the namespace.
func (d *Digest) Tenant() Tenant { return Tenant(d[len(d)-len(Tenant{}):]) }

// Header is what a record says of its block.
type Header struct {
	Namespace    Digest
	Parent       Hash // zeros: none
	Tag          tag.Tag
	Seq          uint64 // of the writes of this store: of two records of a key the later one counts
	PayloadBytes uint32
	Key          []byte
}

// Place is where a record lies, which its check covers.
type Place struct {
	Life uint64 // of the segment's present one
	Off  int64  // in the segment
}

// PayloadOff is where the payload begins, from the start of the record.
func PayloadOff(keyBytes int) int64 {
	return roundUp(HeaderBytes+int64(keyBytes), payloadAlign)
}

// Bytes is the length of a whole record, a multiple of PageBytes.
func Bytes(keyBytes int, payloadBytes int64) int64 {
	return roundUp(PayloadOff(keyBytes)+payloadBytes, PageBytes)
}

// IsNone reports whether the beginning of a record, or of a segment, was made none, or never written.
func IsNone(head []byte) bool { return isZero(head) }

// isZero reports whether bytes without a meaning are as they were written: what they are for later is not known here.
func isZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// Put writes header and key into dst, which has room for PayloadOff bytes, all of which it sets.
func (s *Secret) Put(dst []byte, at Place, h *Header) {
	dst = dst[:PayloadOff(len(h.Key))]
	clear(dst)
	le := binary.LittleEndian
	le.PutUint32(dst, recordMagic)
	le.PutUint16(dst[4:], version)
	le.PutUint16(dst[6:], uint16(len(h.Key)))
	le.PutUint32(dst[8:], h.PayloadBytes)
	le.PutUint64(dst[16:], h.Seq)
	copy(dst[24:], h.Namespace[:])
	copy(dst[56:], h.Parent[:])
	copy(dst[72:], h.Tag[:])
	copy(dst[HeaderBytes:], h.Key)
	check := s.check(at, dst[:checkedBytes], h.Key)
	copy(dst[checkedBytes:], check[:])
}

// Get reads a header and its key, which it does not copy. src begins at the record and may end
// anywhere behind the key. ErrNone if it is none, or not of this place.
func (s *Secret) Get(src []byte, at Place) (Header, error) {
	le := binary.LittleEndian
	if len(src) < HeaderBytes || le.Uint32(src) != recordMagic || le.Uint16(src[4:]) != version {
		return Header{}, ErrNone
	}
	keyBytes := int(le.Uint16(src[6:]))
	if keyBytes == 0 || keyBytes > MaxKeyBytes || len(src) < HeaderBytes+keyBytes {
		return Header{}, ErrNone
	}
	key := src[HeaderBytes : HeaderBytes+keyBytes]
	if !isZero(src[usedBytes:HeaderBytes]) || s.check(at, src[:checkedBytes], key) != [checkBytes]byte(src[checkedBytes:]) {
		return Header{}, ErrNone
	}
	return Header{
		Namespace:    Digest(src[24:]),
		Parent:       Hash(src[56:]),
		Tag:          tag.Tag(src[72:]),
		Seq:          le.Uint64(src[16:]),
		PayloadBytes: le.Uint32(src[8:]),
		Key:          key,
	}, nil
}

// CheckKey says what is wrong with a key.
func CheckKey(key []byte) error {
	if len(key) < 1 || len(key) > MaxKeyBytes {
		return fmt.Errorf("key: %d bytes given; allowed: 1 to %d", len(key), MaxKeyBytes)
	}
	return nil
}
