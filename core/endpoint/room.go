package endpoint

import "time"

// A pair that finds no place left has a live connection evicted. A place comes free when
// the evicted connection's completions have come. That may never happen, and evicting
// more and more would not help then. So:
//
//   - of the connections retired within evictFor, for whatever reason, at most
//     maxEvicting are awaited at a time: their places come as soon as more would;
//   - each peer awaits one, and another only when that one takes longer;
//   - when maxEvicting evictions have freed no place at all, the pauses between
//     the next ones grow.
//
// A connection that was retired longer ago is not counted on, so it delays no other pair.
const (
	maxEvicting = 4
	// evictFor is a multiple of what completions and a tick take.
	evictFor = 100 * time.Millisecond
)

// room is what is known of places that are to come free. Guarded by Store.mu.
type room struct {
	spare     []Ref     // evicted for a peer that has found another place meanwhile
	fruitless int       // evictions since a place came free
	last      time.Time // of them
	askAt     time.Time // when a waiting pair may find room; zero: no pair was told to wait
}

// makeRoom evicts a connection for a peer, unless a place is about to come free.
func (s *Store) makeRoom(p *pair) {
	now := s.cfg.Now()
	if !s.isLeaving(p.evicted) {
		p.evicted = s.takeSpare()
	}
	if until := s.awaits(p, now); until.After(now) {
		s.askAgain(until)
		return
	}
	i := s.live.candidate(func(int32) bool { return true }, s.wasVisited)
	if i == none {
		return
	}
	s.stats.Evicted++
	s.room.fruitless++
	s.room.last = now
	p.evicted = Ref{i, s.entries[i].gen()}
	s.retire(i, nil)
	s.askAgain(now.Add(s.evictFor()))
}

func (s *Store) evictFor() time.Duration { return min(evictFor, s.cfg.DrainFor) }

// awaits returns until when a place may come free without another eviction.
func (s *Store) awaits(p *pair, now time.Time) time.Time {
	if s.isLeaving(p.evicted) {
		return s.entries[p.evicted.index].since.Add(s.evictFor())
	}
	if n := min(maxEvicting, s.cfg.Cap); len(s.retired) >= n {
		// They are in the order in which they were retired.
		nth := s.entries[s.retired[len(s.retired)-n]]
		if until := nth.since.Add(s.evictFor()); until.After(now) {
			return until
		}
	}
	if more := s.room.fruitless - maxEvicting; more >= 0 {
		return s.room.last.Add(min(s.evictFor()<<min(more+1, 16), s.cfg.DrainFor))
	}
	return now
}

// isLeaving reports whether the place of a retired connection will come free, as far as
// is known.
func (s *Store) isLeaving(r Ref) bool {
	e := s.entryOf(r, retiring, quarantined)
	return e != nil && s.cfg.Now().Sub(e.since) < s.evictFor()
}

// leaveSpare: a peer has a place, so the connection that was evicted for it makes room
// for the next one.
func (s *Store) leaveSpare(p *pair) {
	if s.isLeaving(p.evicted) {
		s.room.spare = append(s.room.spare, p.evicted)
	}
	p.evicted = Ref{}
}

// takeSpare returns a connection of which the place is about to come free, or the zero
// Ref.
func (s *Store) takeSpare() (r Ref) {
	spare := s.room.spare
	for len(spare) > 0 && !s.isLeaving(r) {
		r, spare = spare[0], spare[1:]
	}
	s.room.spare = spare
	if !s.isLeaving(r) {
		return Ref{}
	}
	return r
}

// askAgain has the pairs that wait ask when the time has come: nothing else may change
// until then.
func (s *Store) askAgain(at time.Time) {
	if s.room.askAt.IsZero() || at.Before(s.room.askAt) {
		s.room.askAt = at
	}
}

// letAsk is the tick's part of it.
func (s *Store) letAsk(now time.Time) {
	if at := s.room.askAt; !at.IsZero() && !now.Before(at) {
		s.room.askAt = time.Time{}
		s.wakeWaiters()
	}
}
