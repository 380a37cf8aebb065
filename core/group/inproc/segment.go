package inproc

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// segment is memory on the Go heap, aligned to 8 bytes because it is made of
// words.
type segment struct {
	words []atomic.Uint64
	bytes []byte // the same memory
}

func newSegment(sizeBytes int64) *segment {
	words := make([]atomic.Uint64, (sizeBytes+7)/8)
	all := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
	return &segment{words: words, bytes: all[:sizeBytes:sizeBytes]}
}

// Word returns the word at byte offset off.
func (s *segment) Word(off int64) *atomic.Uint64 {
	if off < 0 || off&7 != 0 || off > s.SizeBytes()-8 {
		panic(fmt.Sprintf("word at byte offset %d of a segment of %d bytes", off, s.SizeBytes()))
	}
	return &s.words[off/8]
}

// Bytes returns n bytes at off.
func (s *segment) Bytes(off, n int64) []byte { return s.bytes[off : off+n : off+n] }

// SizeBytes is the segment's length.
func (s *segment) SizeBytes() int64 { return int64(len(s.bytes)) }

// Prefault does nothing: the garbage collector owns these pages.
func (s *segment) Prefault(off, n int64) {}

// Retain does nothing: a reference is enough.
func (s *segment) Retain() {}

// Release does nothing.
func (s *segment) Release() {}
