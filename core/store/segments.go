package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// state is where a segment is in its life.
type state uint8

const (
	stateFree    state = iota
	stateOpen          // records are placed in it
	stateFull          // no more are, and it has no footer yet
	stateSealed        // it has its footer, if the medium lasts
	stateEmptied       // its blocks were evicted or moved; a reader may still look at it
	stateLost          // the medium could not write to it; it is tried again
)

// mostSealing bounds how long a put waits until segments are sealed.
const mostSealing = 10 * time.Second

// retryLost is after which time a segment is tried again that could not be written to.
const retryLost = 10 * time.Second

// segment is one, in one of its lives.
type segment struct {
	// Guarded by Store.mu.
	state      state
	next       int64 // the end of what was placed
	pending    int   // records that were placed and neither written nor given up
	placed     []record.Hash
	namespaces map[uint16]struct{} // of placed: the footer needs room for them
	lost       time.Time           // when stateLost began

	life atomic.Uint64 // a random number, in every record's check
	refs atomic.Int64  // of leases, and of calls that look at a record

	// disk guards what is overwritten in place, and the footer.
	disk   sync.Mutex
	footer record.Tail // zeros without one
}

// spot is where a record was placed.
type spot struct {
	segment int
	off     int64
	life    uint64
	seq     uint64
}

// place reserves room for a record. The caller holds mu, and takes back what is added to pending once the record is
// written or given up. spare says how many free segments have to be left.
func (s *Store) place(h record.Hash, ns uint16, bytes int64, spare int) (spot, error) {
	for tries := 0; s.open == none || !s.segments[s.open].fits(ns, bytes, s.medium.SegmentBytes()); tries++ {
		if tries > len(s.segments) { // what is reclaimed is pinned or hot, and fills the next segment
			return spot{}, s.noRoom()
		}
		if err := s.begin(spare); err != nil {
			return spot{}, err
		}
	}
	g := &s.segments[s.open]
	at := spot{segment: s.open, off: g.next, life: g.life.Load(), seq: s.seq}
	s.seq++
	g.next += bytes
	g.pending++
	g.placed = append(g.placed, h)
	g.namespaces[ns] = struct{}{}
	return at, nil
}

// fits reports whether a record has room in front of the footer.
func (g *segment) fits(ns uint16, bytes, segmentBytes int64) bool {
	numNamespaces := len(g.namespaces)
	if _, known := g.namespaces[ns]; !known {
		numNamespaces++
	}
	return g.next+bytes+record.FooterBytes(len(g.placed)+1, numNamespaces) <= segmentBytes
}

// begin opens a fresh segment in place of the open one. The caller holds mu, which is released while segments have to
// be sealed first: then another may have been opened meanwhile.
func (s *Store) begin(spare int) error {
	s.retire()
	until, reclaims := time.Now().Add(mostSealing), 0
	for s.open == none {
		if s.numFree() > spare {
			s.tryStart(s.freeSegment())
			continue
		}
		// Where nearly all is pinned, reclaiming moves blocks and makes no room.
		if reclaims++; reclaims <= 2*len(s.segments) && s.reclaim() {
			continue // which may have opened one
		}
		if !s.awaitSeal(until) {
			return s.noRoom()
		}
	}
	return nil
}

func (s *Store) tryStart(at int) {
	if err := s.start(at); err != nil {
		s.lose(at, err)
		return
	}
	s.open = at
}

// awaitSeal seals what is full, or waits for a moment while others do. It reports whether it is worth a look at what there
// is now.
func (s *Store) awaitSeal(until time.Time) bool {
	if s.reclaiming || !s.anyFull() || time.Now().After(until) {
		return false
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	s.note(s.sealAll())
	time.Sleep(time.Millisecond)
	return true
}

// noRoom says why no segment can be had.
func (s *Store) noRoom() error {
	for i := range s.segments {
		if s.segments[i].state == stateLost {
			return fmt.Errorf("%w: %w", ErrFull, s.failed)
		}
	}
	return fmt.Errorf("%w: all blocks are pinned, or their segments are being read or written to", ErrFull)
}

// start writes the first page of a segment.
func (s *Store) start(at int) error {
	g := &s.segments[at]
	var random [8]byte
	rand.Read(random[:])
	life := binary.LittleEndian.Uint64(random[:])
	if s.medium.Lasts() {
		page := make([]byte, record.PageBytes)
		s.secret.PutSegment(page, record.Segment{Life: life, Bytes: s.medium.SegmentBytes()})
		if err := s.medium.Write(at, 0, page); err != nil {
			return err
		}
	}
	g.disk.Lock()
	g.footer = record.Tail{}
	g.disk.Unlock()
	g.state, g.next, g.placed = stateOpen, record.PageBytes, g.placed[:0]
	g.life.Store(life)
	g.namespaces = map[uint16]struct{}{}
	return nil
}

// lose sets a segment aside that cannot be written to.
func (s *Store) lose(at int, err error) {
	s.segments[at].state, s.segments[at].lost = stateLost, time.Now()
	s.failed = err
	s.counts.writeErrors.Add(1)
	s.cfg.Log(fmt.Sprintf("segment %d cannot be written to and is tried again in %v: %v", at, retryLost, err))
}

// retire closes the open segment to further records. The caller holds mu.
func (s *Store) retire() {
	if s.open == none {
		return
	}
	g := &s.segments[s.open]
	if g.state = stateSealed; s.medium.Lasts() {
		g.state = stateFull
		s.toSeal = append(s.toSeal, s.open)
		s.wake()
	}
	s.open = none
}

func (s *Store) anyFull() bool {
	for i := range s.segments {
		if s.segments[i].state == stateFull {
			return true
		}
	}
	return false
}

func (s *Store) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *Store) numFree() (n int) {
	for i := range s.segments {
		if s.segments[i].isFree() {
			n++
		}
	}
	return n
}

// isFree makes a segment free that may be by now.
func (g *segment) isFree() bool {
	switch {
	case g.state == stateEmptied && g.refs.Load() == 0 && g.pending == 0:
		g.state = stateFree
	case g.state == stateLost && time.Since(g.lost) > retryLost:
		g.state = stateFree
	}
	return g.state == stateFree
}

func (s *Store) freeSegment() int {
	for i := range s.segments {
		if s.segments[i].isFree() {
			return i
		}
	}
	panic("store: no free segment")
}

// keep seals segments and flushes, until the store is closed.
func (s *Store) keep() {
	tick := time.NewTicker(s.cfg.FlushEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-s.kick:
			if s.dirty.Load() >= s.cfg.FlushBytes {
				s.tend()
			}
		case <-tick.C:
			s.tend()
		}
		s.note(s.sealAll())
	}
}

// tend flushes, or at least tries again what could not be overwritten.
func (s *Store) tend() {
	if s.cfg.Durability == FlushGroup {
		s.note(s.flush())
		return
	}
	s.note(s.buryAll())
}

// note counts an error, and logs it unless it is the same again: a disk that fails does so at each look.
func (s *Store) note(err error) {
	if err == nil {
		return
	}
	s.counts.writeErrors.Add(1)
	if text := err.Error(); s.noted.Swap(text) != text {
		s.cfg.Log(text)
	}
}

// sealAll seals the segments that are full and all of whose records are written.
func (s *Store) sealAll() error {
	var errs []error
	for {
		at := s.nextToSeal()
		if at == none {
			return errors.Join(errs...)
		}
		errs = append(errs, s.seal(at))
	}
}

func (s *Store) nextToSeal() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.toSeal {
		if s.segments[at].pending == 0 {
			s.toSeal = append(s.toSeal[:i], s.toSeal[i+1:]...)
			return at
		}
	}
	return none
}

// seal writes a segment's footer: what it has, and none of which is written any more. If it cannot, the segment
// serves all the same, and the next Open reads its records.
func (s *Store) seal(at int) (err error) {
	g := &s.segments[at]
	g.disk.Lock()
	content := s.footerOf(at)
	footer := s.secret.PutFooter(g.life.Load(), content)
	end, tail := s.medium.SegmentBytes(), len(footer)-record.PageBytes
	// No check covers marks: all of the footer is on the disk before the tail makes it one.
	if err = s.medium.Write(at, end-int64(len(footer)), footer[:tail]); err == nil {
		err = s.medium.Sync(at)
	}
	if err == nil {
		err = s.medium.Write(at, end-record.PageBytes, footer[tail:])
	}
	if err == nil {
		g.footer = content.Tail()
		err = s.medium.Sync(at)
	}
	g.disk.Unlock()
	s.mu.Lock()
	g.state = stateSealed
	s.mu.Unlock()
	return err
}

// footerOf lists a segment's records in order. One that is deleted or moved has an offset of 0. If a key was
// written again in the same segment, the first of its records stands for the block.
func (s *Store) footerOf(at int) *record.Footer {
	g := &s.segments[at]
	s.mu.Lock()
	f := &record.Footer{Seq: s.seq, Entries: make([]record.Entry, len(g.placed))}
	s.mu.Unlock()
	numbers, listed := map[uint16]uint16{}, map[record.Hash]bool{}
	for i, h := range g.placed {
		b, found := s.index.Get(h)
		if !found || int(b.Segment) != at || listed[h] {
			continue
		}
		listed[h] = true
		number, known := numbers[b.Namespace]
		if !known {
			number = uint16(len(numbers))
			numbers[b.Namespace] = number
			f.Namespaces = append(f.Namespaces, s.names.of(NS(b.Namespace)).digest)
		}
		f.Entries[i] = entryOf(&b, number)
	}
	if len(f.Namespaces) == 0 {
		f.Namespaces = []record.Digest{{}} // what the entries of no blocks name
	}
	return f
}

func entryOf(b *index.Block, namespace uint16) record.Entry {
	return record.Entry{
		Hash: b.Hash, Parent: b.Parent, Stamp: b.Stamp, Off: b.Off,
		PayloadBytes: b.PayloadBytes, Namespace: namespace, KeyBytes: b.KeyBytes,
	}
}
