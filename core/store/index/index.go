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

// Walk calls f with copies of blocks, from a cursor on, 0 at the beginning, until it has met so many or f returns false: that
// block is met again by the next call. It returns the next cursor, 0 at the end. A block that is there all the while
// is met once, or twice if others are removed meanwhile; one that comes or goes meanwhile may be missed. f may call the index.
func (x *Index) Walk(cursor uint64, most int, f func(b *Block) (goOn bool)) (next uint64) {
	at := placeOf(cursor)
	for at.shard < numShards {
		b, found := x.before(&at)
		if !found {
			at = place{at.shard + 1, whole}
			continue
		}
		if most == 0 || !f(&b) {
			at.left++
			return at.cursor()
		}
		most--
	}
	return 0
}

// place is how far a walk is: shards from the first one on, the blocks of each from the last one on. One that is removed is
// replaced by the last one, so that what is moved is met again rather than missed.
type place struct {
	shard uint32
	left  uint32 // blocks of the shard that were not met; whole: all
}

const whole = 1<<32 - 1

func placeOf(cursor uint64) place {
	if cursor == 0 {
		return place{0, whole}
	}
	return place{uint32(cursor >> 32), uint32(cursor)}
}

// cursor is not 0: a place at which a walk ends has a block left.
func (p place) cursor() uint64 { return uint64(p.shard)<<32 | uint64(p.left) }

// before takes the last one of the blocks that are left.
func (x *Index) before(p *place) (b Block, found bool) {
	s := &x.shards[p.shard]
	s.mu.RLock()
	defer s.mu.RUnlock()
	p.left = min(p.left, uint32(len(s.blocks)))
	if p.left == 0 {
		return Block{}, false
	}
	p.left--
	return s.blocks[p.left], true
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
