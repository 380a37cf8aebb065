package store

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// Lease keeps a block readable where it is until Release, also if it is deleted or evicted meanwhile. The zero
// Lease is no block. A Lease is not copied.
type Lease struct {
	store *Store
	block index.Block
	tag   tag.Tag
	over  atomic.Bool
}

var errReleased = errors.New("the lease was released")

// Exists says which blocks there are, by position, and how many of them from the first one on without a gap.
func (s *Store) Exists(ns NS, keys [][]byte, found []bool) (consecutive int) {
	n := s.names.of(ns)
	if n == nil {
		clear(found[:len(keys)])
		return 0
	}
	n.hashes.Each(keys, func(i int, h record.Hash) {
		found[i] = record.CheckKey(keys[i]) == nil && s.index.Has(h)
		if found[i] && consecutive == i {
			consecutive++
		}
	})
	return consecutive
}

// Acquire leases blocks, by position, and says how many there were. Every lease has to be released. The
// keys are a chain: the first of them stays longest.
func (s *Store) Acquire(ns NS, keys [][]byte, leases []Lease) (hits int) {
	n := s.names.of(ns)
	if n == nil {
		return 0
	}
	stamp := s.stampChain(len(keys))
	n.hashes.Each(keys, func(i int, h record.Hash) {
		if record.CheckKey(keys[i]) == nil && s.acquire(h, keys[i], stamp-uint64(i), &leases[i]) {
			hits++
		}
	})
	n.hits.Add(uint64(hits))
	n.misses.Add(uint64(len(keys) - hits))
	return hits
}

func (s *Store) acquire(h record.Hash, key []byte, stamp uint64, l *Lease) bool {
	var found bool
	if l.block, found = s.hold(h, stamp); !found {
		return false
	}
	l.store = s
	l.over.Store(false)
	header, err := s.headerOf(&l.block, key)
	if err != nil {
		s.doubted(&l.block, err)
		l.Release()
		return false
	}
	l.tag = header.Tag
	return true
}

// headers are for records that lie in no memory: a look-up makes none.
var headers = sync.Pool{New: func() any { return new([record.HeaderBytes + record.MaxKeyBytes]byte) }}

// hold keeps the segment of a block from being begun anew, until letGo, and raises the block's stamp.
func (s *Store) hold(h record.Hash, stamp uint64) (b index.Block, found bool) {
	found = s.index.Change(h, func(now *index.Block) bool {
		s.segments[now.Segment].refs.Add(1) // while the block is in the index its segment is not free
		now.Stamp = max(now.Stamp, stamp)
		b = *now
		return true
	})
	if found && s.over.Load() {
		s.letGo(&b)
		return b, false
	}
	return b, found
}

func (s *Store) letGo(b *index.Block) { s.unref(int(b.Segment)) }

// unref takes one of a segment's refs back. The last one of a closed store gives the memory back.
func (s *Store) unref(segment int) {
	if s.segments[segment].refs.Add(-1) == 0 && s.memory && s.over.Load() {
		s.note(s.giveBack())
	}
}

// headerOf reads the record of a block that is held, and compares the whole key.
func (s *Store) headerOf(b *index.Block, key []byte) (h record.Header, err error) {
	same := false
	err = s.header(b, func(found record.Header) {
		same = bytes.Equal(found.Key, key)
		h = found
		h.Key = nil
	})
	if err == nil && !same {
		err = record.ErrNone
	}
	if err == nil {
		s.doubts.end(b.Hash)
	}
	return h, err
}

// header reads the record of a block that is held, and calls f with what it says: the key lasts as long as the call.
func (s *Store) header(b *index.Block, f func(record.Header)) error {
	off, n := int64(b.Off)*record.PageBytes, record.HeaderBytes+int64(b.KeyBytes)
	src := s.medium.Bytes(int(b.Segment), off, n)
	if src == nil {
		buf := headers.Get().(*[record.HeaderBytes + record.MaxKeyBytes]byte)
		defer headers.Put(buf)
		src = buf[:n]
		if err := s.medium.Read(int(b.Segment), off, src); err != nil {
			s.counts.readErrors.Add(1)
			return err
		}
	}
	h, err := s.secret.Get(src, record.Place{Life: s.lifeOf(b), Off: off})
	if err == nil && h.PayloadBytes != b.PayloadBytes {
		err = record.ErrNone
	}
	if err == nil {
		f(h)
	}
	return err
}

// lifeOf is that of a block's segment, which does not change while the block has a lease.
func (s *Store) lifeOf(b *index.Block) uint64 { return s.segments[b.Segment].life.Load() }

// spoiled removes a block that is damaged, or cannot be read for good: it must not come back.
func (s *Store) spoiled(b *index.Block) {
	defer s.deletes.begin()()
	if s.delete(b.Hash, func(now *index.Block) bool { return now.Segment == b.Segment && now.Off == b.Off }) {
		s.countSpoiled(b.Segment)
	}
}

// spoiledEvery is how long after a line about a damaged block the next one may be.
const spoiledEvery = 10 * time.Second

// countSpoiled counts a block that was dropped because its record is damaged, and says so now and then.
func (s *Store) countSpoiled(segment uint16) {
	n := s.counts.spoiled.Add(1)
	last, now := s.spoiledSaid.Load(), int64(time.Since(s.opened))
	if (last == 0 || now-last >= int64(spoiledEvery)) && s.spoiledSaid.CompareAndSwap(last, now) {
		s.cfg.Log(fmt.Sprintf("the record of a block in segment %d is damaged: it is dropped, as %d were since the start", segment, n))
	}
}

// Held reports whether the lease has a block.
func (l *Lease) Held() bool { return l.store != nil && !l.over.Load() }

// Bytes is the length of the block.
func (l *Lease) Bytes() int64 { return int64(l.block.PayloadBytes) }

// Tag is what the writer has said of the block's bytes.
func (l *Lease) Tag() tag.Tag { return l.tag }

// Data is the block where it lies, if that is memory; else nil. It must not be changed, nor read after Release.
func (l *Lease) Data() []byte {
	if !l.Held() {
		return nil
	}
	return l.store.medium.Bytes(int(l.block.Segment), l.off(), l.Bytes())
}

// Place is where the block begins in the medium: its segments lie one behind the other.
func (l *Lease) Place() int64 { return int64(l.block.Segment)*l.store.medium.SegmentBytes() + l.off() }

func (l *Lease) off() int64 {
	return int64(l.block.Off)*record.PageBytes + record.PayloadOff(int(l.block.KeyBytes))
}

// Read fills p with the block's bytes from off on. They are as they were found: the tag says whether they are right. It
// fails after Release, and after Close of a store in files.
func (l *Lease) Read(off int64, p []byte) error {
	if !l.Held() {
		return errReleased
	}
	err := l.store.medium.Read(int(l.block.Segment), l.off()+off, p)
	if err != nil {
		l.store.counts.readErrors.Add(1)
	}
	return err
}

// Bad tells that the block's bytes do not fit its tag. It is removed and counted, unless the key has another block by
// now. The lease stays; after Release nothing happens.
func (l *Lease) Bad() {
	if l.Held() {
		l.store.spoiled(&l.block)
	}
}

// Release ends the lease. Idempotent; the zero Lease has nothing to release.
func (l *Lease) Release() {
	if l.store != nil && !l.over.Swap(true) {
		l.store.letGo(&l.block)
	}
}
