package domain

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Format is how one kind of metadata begins: a magic of 4 bytes, the version and the total
// length, 2 bytes each, little-endian. It ends with a checksum.
type Format struct {
	Magic   string
	Version uint16
	// LeastBytes is the length of the shortest, checksum included.
	LeastBytes int
}

// ChecksumBytes is the length of the checksum that ends metadata.
const ChecksumBytes = 8

// Begin returns the first 8 bytes of metadata of total bytes, with room for the others.
func (f *Format) Begin(total int) []byte {
	b := append(make([]byte, 0, total), f.Magic...)
	b = binary.LittleEndian.AppendUint16(b, f.Version)
	return binary.LittleEndian.AppendUint16(b, uint16(total))
}

// Check checks what does not depend on the fields' meaning, the version first: another
// version may have another length field or checksum. Errors wrap ErrMetadata.
func (f *Format) Check(b []byte) error {
	le := binary.LittleEndian
	switch {
	case len(b) < f.LeastBytes:
		return BadMetadata("truncated: %d bytes, at least %d expected", len(b), f.LeastBytes)
	case string(b[:4]) != f.Magic:
		return BadMetadata("it does not begin with %q: not made by this library", f.Magic)
	case le.Uint16(b[4:]) != f.Version:
		return BadMetadata("format version %d, this library reads version %d", le.Uint16(b[4:]), f.Version)
	}
	switch total := int(le.Uint16(b[6:])); {
	case len(b) < total:
		return BadMetadata("truncated: %d of %d bytes", len(b), total)
	case len(b) > total:
		return BadMetadata("%d trailing bytes after %d", len(b)-total, total)
	case !HasChecksum(b):
		return BadMetadata("checksum differs: the bytes were altered")
	}
	return nil
}

// BadMetadata is an ErrMetadata that says what is wrong.
func BadMetadata(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMetadata, fmt.Sprintf(format, args...))
}

// AppendChecksum ends metadata: with the first bytes of the SHA-256 of everything before.
func AppendChecksum(b []byte) []byte {
	sum := sha256.Sum256(b)
	return append(b, sum[:ChecksumBytes]...)
}

// HasChecksum reports whether b is as AppendChecksum has returned it.
func HasChecksum(b []byte) bool {
	sum := sha256.Sum256(b[:len(b)-ChecksumBytes])
	return bytes.Equal(sum[:ChecksumBytes], b[len(b)-ChecksumBytes:])
}
