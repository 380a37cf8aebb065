// Package store keeps blocks: bytes under a key of a namespace, written once, read whole, and evicted when
// room is needed. It is the engine of the block store, without connections.
//
//	Allocate ─▶ Writing ─ Commit ─▶ index ─ Acquire ─▶ Lease ─ Release
//	                │                 │
//	              segments: free ─▶ open ─▶ full ─▶ sealed ─▶ (reclaimed) ─▶ free
//
// Blocks lie in segments, one behind the other (package record), in memory or in files (package medium).
// An index in memory knows them by a hash of namespace and key (package index). Nothing is overwritten: room
// comes from whole segments; their hot blocks are written again. A store in files finds its blocks again by the
// footers of its segments, and where there is no footer by the records themselves.
//
// The writer of a block makes its tag (package tag), the reader compares it. The store hands it on, and compares it
// only where it finds a block again that may be torn.
package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// Sentinels.
var (
	// ErrExists means that the block is there already, with the same length and tag. Nothing has to be written.
	ErrExists = errors.New("the block is there already")
	// ErrConflict means that the key has another block, which stays.
	ErrConflict = errors.New("the key has another block")
	// ErrUnreadable means that the key has a block that the disk cannot read now. It stays, unless that goes on.
	ErrUnreadable = errors.New("the key has a block that cannot be read now")
	// ErrFull means that no room can be made: nothing has happened.
	ErrFull = errors.New("no room")
	// ErrTooLarge means that no segment has room for such a block.
	ErrTooLarge = errors.New("the block is too large")
	// ErrQuota means that the namespaces of a tenant take as much as they may, and that no block of theirs can be evicted.
	ErrQuota = errors.New("the quota is used up")
	// ErrWouldBlock means that as many bytes are being written as may be: try again later.
	ErrWouldBlock = errors.New("too much is being written")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("the store is closed")
	// ErrNamespaces means that there are as many namespaces as may be.
	ErrNamespaces = errors.New("too many namespaces")
)

// Durability says when a commit of a store in files returns.
type Durability uint8

// The durabilities. Flush is as good with each.
const (
	// FlushGroup flushes every Config.FlushEvery, or Config.FlushBytes: a power cut loses what came since.
	FlushGroup Durability = iota
	// FlushNone leaves it to the kernel, and to Flush.
	FlushNone
	// FlushEach flushes before a block is visible.
	FlushEach
)

// Config says what Open makes.
type Config struct {
	// Medium is where segments lie: Open owns it, and closes it with the store.
	Medium medium.Medium
	// Secret is that of the medium; zeros for a medium that does not last, which gets one.
	Secret     record.Secret
	Durability Durability
	FlushEvery time.Duration // 0: 20 ms
	FlushBytes int64         // 0: 64 MiB
	// StagedBytes bounds the memory of what is being written to a medium that is not memory; 0: 64 MiB, at least what a segment
	// needs.
	StagedBytes int64
	// Policy says what is evicted; nil: LRU.
	Policy Policy
	// Log gets one line for each event that an operator must know of. May be nil.
	Log func(line string)
}

// Store is safe for concurrent use.
type Store struct {
	cfg      Config
	medium   medium.Medium
	secret   record.Secret
	memory   bool // blocks are written where they stay
	index    *index.Index
	names    names
	stamps   atomic.Uint64
	counts   counters
	pins     pins
	erasures erasures
	wet      wet
	doubts   doubts
	deletes  deletes
	copies   copies
	busy     keys // one put of a key at a time
	noted    noted
	writings writings
	stagings stagings
	live     atomic.Int64 // bytes of the records of all blocks
	dirty    atomic.Int64 // bytes that were written and not flushed

	opened      time.Time
	spoiledSaid atomic.Int64 // when a line said that a block was damaged, ns since opened
	reserved    atomic.Int64 // bytes of the records of all Writings

	// No call of the medium runs under mu: all that place a record need it.
	mu         sync.Mutex
	segments   []segment
	open       int // the segment that is written to, or none
	lastFree   int // a segment that was free at the last look
	closed     bool
	failed     error  // the latest failure to begin a segment
	numNoRoom  int    // segments that the medium has no room for
	numGone    int    // segments that the capacity has no room for, from Open on
	stuck      error  // the latest failure to make one free, until it works
	seq        uint64 // of records
	staged     int64
	toSeal     []int
	starting   bool          // the first page of a segment is being written
	reclaiming bool          // a segment is being emptied
	turned     chan struct{} // closed, and made anew, when a segment has changed its state

	flusher flusher
	over    atomic.Bool   // Close has done all but give the medium back
	wakeup  chan struct{} // of keep
	ahead   chan struct{} // of reclaimAhead
	done    chan struct{}
	stopped sync.WaitGroup
}

const none = -1

// Open finds the blocks of a medium again, and begins. It owns the medium, also if it fails.
func Open(cfg Config) (*Store, error) {
	s := newStore(cfg)
	if s.medium.Lasts() {
		if err := (&recovery{Store: s, said: map[int]bool{}}).run(); err != nil {
			return nil, errors.Join(fmt.Errorf("the store cannot be read: %w", err), s.medium.Close())
		}
	}
	s.stopped.Go(s.keep)
	s.stopped.Go(s.flushRounds)
	s.stopped.Go(s.reclaimAhead)
	return s, nil
}

// newStore is a store that knows no block.
func newStore(cfg Config) *Store {
	s := &Store{
		cfg: cfg.filled(), opened: time.Now(), medium: cfg.Medium, secret: cfg.Secret, index: index.New(), open: none,
		segments: make([]segment, cfg.Medium.NumSegments()), turned: make(chan struct{}),
		wakeup: make(chan struct{}, 1), ahead: make(chan struct{}, 1), done: make(chan struct{}),
	}
	s.memory = s.medium.Bytes(0, 0, 1) != nil
	s.flusher.wakeup = make(chan struct{}, 1)
	if s.secret == (record.Secret{}) {
		rand.Read(s.secret[:])
	}
	s.stamps.Store(chainUses * chainRoom) // no block can be so old that there is no stamp below its own
	s.names.key, s.names.secret = tag.Key(s.secret.ForTags()), &s.secret
	return s
}

func (c Config) filled() Config {
	if c.FlushEvery == 0 {
		c.FlushEvery = 20 * time.Millisecond
	}
	if c.FlushBytes == 0 {
		c.FlushBytes = 64 << 20
	}
	if c.StagedBytes == 0 {
		c.StagedBytes = 64 << 20
	}
	longest, _ := stagingSize(c.Medium.SegmentBytes())
	c.StagedBytes = max(c.StagedBytes, longest)
	if c.Policy == nil {
		c.Policy = LRU{}
	}
	if c.Log == nil {
		c.Log = func(string) {}
	}
	return c
}

// Close seals what is open, so that the next Open is quick, flushes, and releases everything. No other call may be running.
// Idempotent. A lease or a Writing that has not ended keeps the memory of a medium in memory, until it ends; a read from
// files fails.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.retire()
	s.turn()
	s.mu.Unlock()
	close(s.done)
	s.stopped.Wait()
	err := errors.Join(s.sealAll(), s.flush())
	if s.inDoubt() != nil {
		err = errors.Join(err, s.flush()) // the next Open would believe what is there
	}
	s.over.Store(true)
	if !s.memory {
		return errors.Join(err, s.medium.Close())
	}
	return errors.Join(err, s.giveBack())
}

// giveBack unmaps the memory of a closed store, unless a part of it is in use: then the end of that calls it again.
func (s *Store) giveBack() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.segments {
		if g := &s.segments[i]; g.refs.Load() != 0 || g.pending != 0 {
			return nil
		}
	}
	return s.medium.Close()
}

// MaxBlockBytes is the longest block with a key of so many bytes.
func (s *Store) MaxBlockBytes(keyBytes int) int64 {
	room := s.medium.SegmentBytes() - record.PageBytes - record.FooterBytes(1, 1)
	return min(room-record.PayloadOff(keyBytes), record.MaxPayloadBytes)
}
