package store

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/record"
)

// mostSealing bounds how long a put waits until segments are sealed or reclaimed.
const mostSealing = 10 * time.Second

// What a record is placed for: how many free segments it has to leave. The last one is for blocks that are moved.
const (
	forMove = 0
	forPut  = 1
)

// spot is where a record was placed.
type spot struct {
	segment int
	off     int64
	life    uint64
	seq     uint64
}

// roomBudget bounds what one call does for room.
type roomBudget struct {
	until    time.Time
	reclaims int // that are left: where nearly all is pinned, reclaiming moves blocks and makes no room
}

// place reserves room for a record. The caller holds mu, which is released while room is made, and takes back what is added to
// pending once the record is written or given up (written).
func (s *Store) place(h record.Hash, ns uint16, bytes int64, spare int) (spot, error) {
	p := roomBudget{time.Now().Add(mostSealing), 2 * len(s.segments)}
	for s.closed || !s.takes(ns, bytes, spare) {
		if err := s.begin(spare, &p); err != nil {
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

// takes reports whether the open segment has room for a record.
func (s *Store) takes(ns uint16, bytes int64, spare int) bool {
	return s.open != none && !s.isForMoves(spare) && s.segments[s.open].fits(ns, bytes, s.medium.SegmentBytes())
}

// isForMoves reports whether a put leaves the open segment alone: there is no other room for blocks that are moved. While the
// medium cannot write to all segments a put may have that room, unless blocks are being moved.
func (s *Store) isForMoves(spare int) bool {
	return spare != forMove && !s.anyFree() && (s.reclaiming || !s.has(stateLost))
}

// written takes back what place has added to pending.
func (s *Store) written(segment int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noLongerPending(segment)
}

func (s *Store) noLongerPending(segment int) {
	g := &s.segments[segment]
	g.pending--
	if g.state == stateFull && g.pending == 0 {
		wake(s.wakeup)
	}
}

// begin opens a fresh segment in place of the open one, or waits until the open one takes puts again. The caller holds mu, which
// is released meanwhile: others may place records then.
func (s *Store) begin(spare int, p *roomBudget) error {
	if !s.isForMoves(spare) {
		s.retire()
	}
	for s.open == none || s.isForMoves(spare) {
		if err := s.settleDoubts(p.until); err != nil {
			return err
		}
		switch {
		case s.closed:
			return ErrClosed
		case !time.Now().Before(p.until):
			return s.noRoom()
		case s.starting:
			s.await(s.turned, p.until)
		case s.open == none && s.dueForRoom() != none: // an open one that is left for moves is not replaced
			s.tryStart(s.dueForRoom())
		case s.numFree() > spare:
			s.tryStart(s.freeSegment())
		case spare == forMove:
			return s.noRoom()
		case s.makeRoom(p):
		case s.numNoRoom > 0 && s.anyFree(): // all that there is room for, which is too little to keep one for moves
			s.tryStart(s.freeSegment())
		default:
			return s.noRoom()
		}
	}
	if s.closed {
		return ErrClosed
	}
	return nil
}

// makeRoom reclaims a segment, or waits for those that are being reclaimed or sealed. It reports whether it is worth a look at
// what there is now.
func (s *Store) makeRoom(p *roomBudget) bool {
	if s.reclaiming {
		s.await(s.turned, p.until)
		return true
	}
	if p.reclaims > 0 && s.reclaim() {
		p.reclaims--
		return true
	}
	if !s.has(stateFull) {
		return s.reclaiming || s.numFree() > forPut
	}
	turned := s.turned
	s.mu.Unlock()
	s.note(s.sealAll())
	s.mu.Lock()
	s.await(turned, p.until)
	return true
}

// await waits for a turn, until a time. The caller holds mu, which is released meanwhile.
func (s *Store) await(turned chan struct{}, until time.Time) {
	s.mu.Unlock()
	defer s.mu.Lock()
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-turned:
	case <-timer.C:
	}
}

// noRoom says why no segment can be had.
func (s *Store) noRoom() error {
	for i := range s.segments {
		if s.segments[i].state == stateLost {
			return fmt.Errorf("%w: %w", ErrFull, s.failed)
		}
	}
	if s.stuck != nil {
		return fmt.Errorf("%w: %w", ErrFull, s.stuck)
	}
	return fmt.Errorf("%w: all blocks are pinned, or their segments are being read or written to", ErrFull)
}

// tryStart opens a free segment, if the medium can write to it. The caller holds mu, which is released meanwhile.
func (s *Store) tryStart(at int) {
	g := &s.segments[at]
	s.starting, g.state = true, stateStarting
	s.mu.Unlock()
	life, err := s.start(at)
	s.mu.Lock()
	s.starting = false
	line := ""
	if err != nil {
		line = s.lose(at, err)
	} else {
		g.state, g.next, g.placed = stateOpen, record.PageBytes, g.placed[:0]
		if clear(g.namespaces); g.namespaces == nil {
			g.namespaces = map[uint16]struct{}{}
		}
		g.life.Store(life)
		g.lost, g.said = time.Time{}, false
		s.setNoRoom(g, false)
		s.retire() // one that was left for moves is sealed, as any other
		s.open = at
		if g.inDoubt {
			s.retire() // a flush has failed since its first page was written: what is put there would be lost
		}
	}
	s.turn()
	wake(s.ahead)
	if line != "" {
		s.mu.Unlock() // what takes the line may be slow
		s.cfg.Log(line)
		s.mu.Lock()
	}
}

// start makes room for a segment, and writes its first page where that lasts. It returns the segment's new life.
func (s *Store) start(at int) (uint64, error) {
	g := &s.segments[at]
	var random [8]byte
	rand.Read(random[:])
	life := binary.LittleEndian.Uint64(random[:])
	var page []byte // without one the medium only makes room for the segment
	if s.medium.Lasts() {
		page = s.firstPage(life)
	}
	if err := s.writeTo(at, 0, page); err != nil {
		return 0, err
	}
	g.disk.Lock()
	g.footer = record.Tail{}
	g.disk.Unlock()
	return life, nil
}

// firstPage is the first page of a segment in one of its lives.
func (s *Store) firstPage(life uint64) []byte {
	page := make([]byte, record.PageBytes)
	s.secret.PutSegment(page, record.Segment{Life: life, Bytes: s.medium.SegmentBytes()})
	return page
}

// lose sets a segment aside that cannot be written to. It returns the line to be logged: one for all that lack room, and for each of
// the others one until it can be written to again.
func (s *Store) lose(at int, err error) (line string) {
	g := &s.segments[at]
	g.state, g.lost = stateLost, time.Now()
	s.failed = err
	s.counts.writeErrors.Add(1)
	if !medium.LacksRoom(err) {
		s.setNoRoom(g, false)
		if g.said {
			return ""
		}
		g.said = true
		return fmt.Sprintf("segment %d cannot be written to and is tried again in %v: %v", at, retryLost, err)
	}
	if g.noRoom {
		s.putOff()
		return ""
	}
	if s.setNoRoom(g, true); s.numNoRoom > 1 {
		return ""
	}
	return fmt.Sprintf("there is no room for segment %d: the store is as large as there is room, and tries again every %v: %v",
		at, retryLost, err)
}

// putOff has all segments wait for room, as a try has failed.
func (s *Store) putOff() {
	for i := range s.segments {
		if g := &s.segments[i]; g.noRoom {
			g.lost = time.Now()
		}
	}
}

// setNoRoom notes whether the medium has room for a segment.
func (s *Store) setNoRoom(g *segment, lacks bool) {
	if g.noRoom == lacks {
		return
	}
	if g.noRoom = lacks; lacks {
		s.numNoRoom++
	} else {
		s.numNoRoom--
	}
}
