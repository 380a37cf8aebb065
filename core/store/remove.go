package store

import (
	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// drop removes a block from the index, and its pin, if sure says so of what is there under the lock of the index.
func (s *Store) drop(h record.Hash, sure func(*index.Block) bool) bool {
	s.pins.mu.Lock()
	defer s.pins.mu.Unlock()
	return s.dropNow(h, sure)
}

// dropNow is drop for a caller that holds the pins: none is taken or asked for between the block's end and that of its pin.
func (s *Store) dropNow(h record.Hash, sure func(*index.Block) bool) bool {
	dropped, is := index.Block{}, false
	s.index.Change(h, func(b *index.Block) (keep bool) {
		is = sure(b)
		dropped = *b
		return !is
	})
	if is {
		s.pins.end(h)
		s.doubts.end(h)
		s.account(&dropped, -1)
	}
	return is
}

// account adds a block that has come, or takes one back that has gone.
func (s *Store) account(b *index.Block, sign int64) {
	s.live.Add(sign * b.RecordBytes())
	s.names.count(b, sign)
}

// accountFound is account for a block that a start has found: it counts in its tenant's quota, whatever that is.
func (s *Store) accountFound(b *index.Block) {
	s.names.of(NS(b.Namespace)).tenant.add(b.RecordBytes())
	s.account(b, 1)
}

// Delete removes blocks, by position, and says how many there were. Leases of them stay good.
func (s *Store) Delete(ns NS, keys [][]byte, deleted []bool) (num int) {
	n := s.names.of(ns)
	for i, key := range keys {
		deleted[i] = n != nil && record.CheckKey(key) == nil && s.deleteAny(n.hashes.Of(key))
		if deleted[i] {
			num++
		}
	}
	s.counts.deletes.Add(uint64(num))
	return num
}

// deleteAny removes the block of a key. One that was evicted a moment ago must not be found by the next Open, either.
func (s *Store) deleteAny(h record.Hash) bool {
	defer s.deletes.begin()()
	deleted := s.delete(h, anyBlock)
	if !deleted {
		s.eraseCopies(h)
	}
	return deleted
}

func anyBlock(*index.Block) bool { return true }

// delete removes a block of which sure is true, for good.
func (s *Store) delete(h record.Hash, sure func(*index.Block) bool) bool {
	var b index.Block
	if !s.drop(h, func(now *index.Block) bool {
		if !sure(now) {
			return false
		}
		b = *now
		s.segments[b.Segment].refs.Add(1) // it is not begun anew before the record is none
		return true
	}) {
		return false
	}
	_ = s.erase(&b) // the next flush tries again
	s.eraseCopies(h)
	return true
}

// Touch says that blocks are used, and says how many there are. The keys are a chain.
func (s *Store) Touch(ns NS, keys [][]byte) (num int) {
	n := s.names.of(ns)
	if n == nil {
		return 0
	}
	stamp := s.stampChain(len(keys))
	n.hashes.Each(keys, func(i int, h record.Hash) {
		if record.CheckKey(keys[i]) == nil && s.index.Touch(h, stamp-uint64(i)) {
			num++
		}
	})
	return num
}
