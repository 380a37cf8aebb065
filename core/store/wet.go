package store

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/store/index"
)

// wet knows what a flush that fails may have lost. The kernel says once that it could not write something, and counts it as written
// then: a later flush succeeds without it.
type wet struct {
	writing sync.RWMutex  // held for reading by what writes, and for a moment as a whole by a flush that has failed
	flushes sync.Mutex    // one flush of the disk at a time: the kernel tells one of several that it has failed
	clock   atomic.Uint64 // of writes that have ended
	dry     uint64        // the latest that is on the disk, guarded by flushes
	doubted atomic.Int64  // segments in doubt

	failed   error     // the latest failure of a flush, guarded by Store.mu
	failedAt time.Time // and when that was
}

var errInDoubt = errors.New("a flush has failed, and what was written before it is being given up")

// writeTo writes to the medium. What has failed is not believed, or is tried again.
func (s *Store) writeTo(segment int, off int64, pieces ...[]byte) error {
	if s.memory {
		return s.medium.Write(segment, off, pieces...)
	}
	s.wet.writing.RLock()
	defer s.wet.writing.RUnlock()
	err := s.medium.Write(segment, off, pieces...)
	if err == nil {
		s.segments[segment].raise(s.wet.clock.Add(1))
	}
	return err
}

// raise notes the time of a write.
func (g *segment) raise(now uint64) {
	for before := g.wrote.Load(); before < now && !g.wrote.CompareAndSwap(before, now); {
		before = g.wrote.Load()
	}
}

// sync returns once all that was written before is on the disk. If it fails the segments that were written to since the last time are
// in doubt.
func (s *Store) sync(segment int) error {
	s.wet.flushes.Lock()
	defer s.wet.flushes.Unlock()
	return s.syncNow(segment)
}

// syncWritten is sync, for a caller that has written to a segment and wants no more than that: another one's may have done it. It
// fails, too, where an earlier one may have lost what was written.
func (s *Store) syncWritten(segment int) error {
	written := s.wet.clock.Load()
	s.wet.flushes.Lock()
	defer s.wet.flushes.Unlock()
	if s.wet.dry < written {
		if err := s.syncNow(segment); err != nil {
			return err
		}
	}
	if s.wet.doubted.Load() > 0 && s.isDoubted(segment) {
		return errInDoubt
	}
	return nil
}

func (s *Store) isDoubted(segment int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.segments[segment].inDoubt
}

// syncNow is sync for a caller that holds flushes.
func (s *Store) syncNow(segment int) error {
	now := s.wet.clock.Load()
	err := s.medium.Sync(segment)
	if err == nil {
		s.wet.dry = now
		return nil
	}
	s.wet.writing.Lock() // what is being written is lost or not
	var wet []int
	for i := range s.segments {
		if s.segments[i].wrote.Load() > s.wet.dry {
			wet = append(wet, i)
		}
	}
	s.wet.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wet.failed, s.wet.failedAt = err, time.Now()
	for _, at := range wet {
		s.doubt(at)
	}
	return err
}

// doubt has nothing more placed in a segment, which is given up. The caller holds mu.
func (s *Store) doubt(at int) {
	if s.open == at {
		s.retire()
	}
	if g := &s.segments[at]; !g.inDoubt {
		g.inDoubt = true
		s.wet.doubted.Add(1)
	}
}

// inDoubt is an error while segments are.
func (s *Store) inDoubt() error {
	if n := s.wet.doubted.Load(); n > 0 {
		return fmt.Errorf("%w: %d segments are left", errInDoubt, n)
	}
	return nil
}

// retryFlush is how long a put does not try what has failed: a flush of the disk.
const retryFlush = 100 * time.Millisecond

// settleDoubts waits for a flush after one that has failed, until a time, and says why nothing can be put while segments are in doubt:
// it would be lost with them. The caller holds mu, which is released meanwhile.
func (s *Store) settleDoubts(until time.Time) error {
	if s.wet.doubted.Load() == 0 {
		return nil
	}
	if time.Since(s.wet.failedAt) > retryFlush {
		s.mu.Unlock()
		if err := s.Flush(until); !errors.Is(err, ErrClosed) {
			s.note(err)
		}
		s.mu.Lock()
	}
	if err := s.inDoubt(); err != nil {
		return fmt.Errorf("%w: %w: %w", ErrFull, err, s.wet.failed)
	}
	return nil
}

// giveUpDoubted drops the blocks of segments in doubt, and makes these none: the flush that follows has to be good for what stays. Those
// that are being written to, or emptied, are left to the next one. While the disk goes on to fail nothing is dropped.
func (s *Store) giveUpDoubted() error {
	if s.wet.doubted.Load() == 0 {
		return nil
	}
	if err := s.sync(0); err != nil {
		return err
	}
	s.loseDoubted()
	return nil
}

func (s *Store) loseDoubted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reclaiming {
		return // it may be about to end what a block of a doubted segment was moved from
	}
	s.reclaiming = true
	lost := 0
	for at := range s.segments {
		if s.takeDoubted(at) {
			s.mu.Unlock()
			lost += s.loseSegment(at)
			s.mu.Lock()
		}
	}
	s.reclaiming = false
	s.turn()
	if lost > 0 {
		s.counts.evictedDoubted.Add(uint64(lost))
		s.mu.Unlock()
		s.cfg.Log(fmt.Sprintf("a flush has failed: %d blocks that it may have lost are dropped", lost))
		s.mu.Lock()
	}
}

// takeDoubted reports whether a segment is in doubt and can be given up, and takes it for that. The caller holds mu.
func (s *Store) takeDoubted(at int) bool {
	g := &s.segments[at]
	if !g.inDoubt || g.pending > 0 {
		return false
	}
	switch g.state {
	case stateFull:
		if !s.takeFromSeal(at) {
			return false // its footer is being written
		}
	case stateSealed, stateFree, stateLost, stateEmptied, stateGone:
	default:
		return false
	}
	g.inDoubt = false
	s.wet.doubted.Add(-1)
	if g.eraseDue {
		return false // it is made none anyway
	}
	if g.state != stateGone { // else only its first page may have been lost, and it stays set aside
		g.state = stateEmptied
	}
	g.eraseDue = true
	g.refs.Add(1)
	return true
}

// takeFromSeal takes a segment from those that are to be sealed. It reports whether it was one. The caller holds mu.
func (s *Store) takeFromSeal(at int) bool {
	i := slices.Index(s.toSeal, at)
	if i < 0 {
		return false
	}
	s.toSeal = slices.Delete(s.toSeal, i, i+1)
	return true
}

// loseSegment drops the blocks of a segment that was taken, but for those that have another record on the disk, and makes it none. It returns
// how many are lost.
func (s *Store) loseSegment(at int) (lost int) {
	for _, h := range s.segments[at].placed {
		b, found := s.index.Get(h)
		if !found || int(b.Segment) != at || s.goBack(&b) {
			continue
		}
		if s.drop(h, func(now *index.Block) bool { return now.Segment == b.Segment && now.Off == b.Off }) {
			lost++
			s.eraseCopies(h)
		}
	}
	_ = s.erase(&index.Block{Segment: uint16(at)}) // the next flush tries again
	return lost
}

// goBack gives a block the place that it was moved from, if its record is there still.
func (s *Store) goBack(b *index.Block) (is bool) {
	taken := s.copies.take(b.Hash, func(segment uint16) { s.segments[segment].refs.Add(1) })
	for i := range taken {
		from := &taken[i]
		if !is && s.isGood(from.Segment) && s.changePlace(b, from) {
			is = true
			s.letGo(from)
			continue
		}
		_ = s.erase(from) // the next flush tries again
	}
	return is
}

// changePlace gives a block another place, unless its key has another block by now, or none.
func (s *Store) changePlace(b, to *index.Block) (changed bool) {
	s.index.Change(b.Hash, func(now *index.Block) bool {
		if changed = now.Segment == b.Segment && now.Off == b.Off; changed {
			now.Segment, now.Off = to.Segment, to.Off
		}
		return true
	})
	return changed
}

// isGood reports whether the records of a segment are on the disk, and stay there for now.
func (s *Store) isGood(segment uint16) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := &s.segments[segment]
	return g.state == stateSealed && !g.inDoubt
}
