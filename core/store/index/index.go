// Package index finds blocks by the hash of their namespace and key. It lies in memory alone,
// without pointers, so that the garbage collector has nothing to look at; a block takes at most
// MaxBytesPerBlock however long its key is.
package index

import (
	"sync"

	"github.com/moewire/moewire/core/store/record"
)

// MaxBytesPerBlock bounds what a block takes here, with the room that tables keep free.
const MaxBytesPerBlock = 100

const (
	shardBits = 6
	numShards = 1 << shardBits
)

// Block is what is known of a stored block without reading its record.
type Block struct {
	Hash, Parent record.Hash
	Stamp        uint64 // when it was last used: of two stamps the higher one is the later
	Off          uint32 // of its record, in pages
	PayloadBytes uint32
	Segment      uint16
	Namespace    uint16
	KeyBytes     uint16
}

// RecordBytes is how many bytes of its segment the block takes.
func (b *Block) RecordBytes() int64 { return record.Bytes(int(b.KeyBytes), int64(b.PayloadBytes)) }

// Index is safe for concurrent use. A call sees and changes one block at a time.
type Index struct {
	shards [numShards]shard
}

type shard struct {
	mu     sync.RWMutex
	blocks []Block  // dense: the last one fills the place of one that is removed
	table  []uint32 // open addressing, 1 + the place in blocks; 0 is empty
}

// New makes an empty index.
func New() *Index { return &Index{} }

func (x *Index) shardOf(h *record.Hash) *shard { return &x.shards[h[15]&(numShards-1)] }

// Get returns a copy of a block.
func (x *Index) Get(h record.Hash) (b Block, found bool) {
	s := x.shardOf(&h)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if at := s.find(&h); at >= 0 {
		return s.blocks[at], true
	}
	return Block{}, false
}

// Has reports whether there is such a block.
func (x *Index) Has(h record.Hash) bool {
	s := x.shardOf(&h)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.find(&h) >= 0
}

// Put adds a block, unless one of its hash is there: that is returned then, and nothing happened.
func (x *Index) Put(b Block) (there Block, added bool) {
	s := x.shardOf(&b.Hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.find(&b.Hash); at >= 0 {
		return s.blocks[at], false
	}
	s.add(b)
	return b, true
}

// Change calls f with a block, which it may alter but for Hash, under the lock of a part of the
// index: f calls nothing of the index. It removes the block where f returns false. It reports whether there
// was one.
func (x *Index) Change(h record.Hash, f func(*Block) (keep bool)) bool {
	s := x.shardOf(&h)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.find(&h)
	if at < 0 {
		return false
	}
	if !f(&s.blocks[at]) {
		s.remove(at)
	}
	return true
}

// Touch raises the stamp of a block.
func (x *Index) Touch(h record.Hash, stamp uint64) bool {
	s := x.shardOf(&h)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.find(&h)
	if at >= 0 {
		s.blocks[at].Stamp = max(s.blocks[at].Stamp, stamp)
	}
	return at >= 0
}

// Len is how many blocks there are.
func (x *Index) Len() (n int) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		n += len(s.blocks)
		s.mu.RUnlock()
	}
	return n
}

// Each calls f with a copy of every block that is there all the while, some shards after others.
// Blocks that come or go meanwhile may be missed, or met once. f may call the index.
func (x *Index) Each(f func(b *Block)) {
	var copied []Block
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		copied = append(copied[:0], s.blocks...)
		s.mu.RUnlock()
		for j := range copied {
			f(&copied[j])
		}
	}
}

// SizeBytes is the memory of all tables.
func (x *Index) SizeBytes() (n int64) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		n += int64(cap(s.blocks))*blockBytes + int64(cap(s.table))*4
		s.mu.RUnlock()
	}
	return n
}
