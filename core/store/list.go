package store

import (
	"bytes"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// Bounds of one call of List: the blocks that it looks at in the index, and the keys that it reads from records.
const (
	listBlocks = 1 << 14
	listReads  = 1 << 10
)

// List gives the keys of a namespace's blocks that begin with a prefix, in no order, from a cursor on, 0 at the beginning: at most
// n of them, and the next cursor, 0 at the end. What one call does is bounded: it may return no key and a cursor from
// which to go on. A block that is there all the while is listed once, or twice if others are removed meanwhile; blocks that come or
// go meanwhile may be missed. A cursor that no call has returned lists any part, or nothing.
func (s *Store) List(ns NS, prefix []byte, cursor uint64, n int) (keys [][]byte, next uint64) {
	if s.names.of(ns) == nil || n <= 0 {
		return nil, 0
	}
	reads := 0
	next = s.index.Walk(cursor, listBlocks, func(b *index.Block) (goOn bool) {
		if NS(b.Namespace) != ns || int(b.KeyBytes) < len(prefix) {
			return true
		}
		if len(keys) == n || reads == listReads {
			return false
		}
		reads++
		if key := s.keyOf(b.Hash); key != nil && bytes.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
		return true
	})
	return keys, next
}

// keyOf reads a block's key; nil if the block is gone or damaged.
func (s *Store) keyOf(h record.Hash) (key []byte) {
	b, found := s.hold(h, 0)
	if !found {
		return nil
	}
	defer s.letGo(&b)
	_ = s.header(&b, func(h record.Header) { key = bytes.Clone(h.Key) })
	return key
}
