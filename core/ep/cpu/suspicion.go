package cpu

import (
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// waitGraph is what a suspicion looks at: which rank waits for which ranks.
type waitGraph struct {
	peers        []peer
	self         int
	members      rankset.Set   // of the detector's epoch, now
	timeout      time.Duration // of a wait, as the detecting rank has it
	pollInterval time.Duration // of a wait's sleeps
	age          time.Duration // the most that words of other ranks may be old
	clock        *telemetry.Clock
}

// suspicion finds the straggler that causes a delay. The rank that is waited for may be
// blocked: alive, and late only because it waits for another rank itself. A
// blocked rank shows which ranks it waits for and since when, and its beat moves. So the
// suspicion compares beats over a while. Its owner guards it: Buffer.mu the suspicion of
// a call, the user of a FailureDetector that detector's.
type suspicion struct {
	open    bool
	since   time.Time
	looks   int
	excuses int
	beats   [rankset.MaxRanks]uint64
}

// A suspicion lasts as long as every live waiter needs for several turns. It lasts for
// several looks at least, because the detector may have been off its processor
// itself. Words of remote ranks come as copies, several times in that time. While
// the goroutine that brings them does not run, their age grows, and the suspicion
// lasts longer. A circle of waits counts when several suspicions in a row, of one
// operation, have found nothing else.
const (
	suspicionSleeps = 8
	suspicionAges   = 4
	suspicionLooks  = 4
	maxExcuses      = 3
)

// decision of a suspicion: the ranks to fence, or, if there are none, until when to wait.
type decision struct {
	causes rankset.Set
	until  time.Time
}

// look opens the suspicion or goes on with it.
func (tr *suspicion) look(now time.Time, w *waitGraph, waiting rankset.Set) (v decision, decided bool) {
	if !tr.open {
		tr.begin(now, w.peers)
		return decision{}, false
	}
	tr.looks++
	if tr.looks < suspicionLooks || now.Sub(tr.since) < max(suspicionSleeps*w.pollInterval, suspicionAges*w.age) {
		return decision{}, false
	}
	tr.open = false
	return tr.decide(now, w, waiting), true
}

// wordAge is how old the words of other ranks may be.
func (b *Buffer) wordAge() time.Duration {
	if b.remote == nil {
		return 0
	}
	return b.remote.carrier.WordAge()
}

// wordAge is how old the words of remote ranks may be; 0 without any.
func wordAge(dom domain.Domain) time.Duration {
	if remote := dom.Remote(); remote != nil {
		return remote.WordAge()
	}
	return 0
}

func (tr *suspicion) begin(now time.Time, peers []peer) {
	tr.open, tr.since, tr.looks = true, now, 0
	for r := range peers {
		if peers[r].proc != nil {
			tr.beats[r] = peers[r].beat().Load()
		}
	}
}

// decide blames the stragglers, which are at the ends of the chains of waits: they do
// not wait, or their beat stands still. A straggler behind a blocked rank gets as much
// time, from the beginning of that rank's wait, as this rank gives its own wait.
func (tr *suspicion) decide(now time.Time, w *waitGraph, waiting rankset.Set) (v decision) {
	members := w.members
	todo, seen, early := waiting.And(members), rankset.Set{}, rankset.Set{}
	causes := tr.still(w, todo)
	for todo = todo.Minus(causes); !todo.Empty(); {
		m := todo.Min()
		seen = seen.With(m)
		p := &w.peers[m]
		next := rankset.FromWord(p.waitsFor().Load()).And(members)
		waited, ok := waitedSince(w.clock.At(now), p.since().Load())
		if !ok { // its words are wild: the ranks that it names are not the cause
			causes, todo = causes.With(m), todo.Minus(seen)
			continue
		}
		end := now.Add(w.timeout - waited)
		still := tr.still(w, next)
		if now.Before(end) && !still.Empty() {
			early = early.Or(still)
			v.until = earlier(v.until, end)
		} else {
			causes = causes.Or(still)
		}
		todo = todo.Or(next.Minus(still)).Minus(seen)
	}
	if v.causes = causes; causes.Empty() && early.Empty() {
		v.causes = tr.breakCircle(w, seen)
	} else {
		tr.excuses = 0
	}
	return v
}

// clockSlack is how far a moment that another rank names may lie ahead: the moments of
// other hosts are moved from clock to clock.
const clockSlack = time.Second

// waitedSince returns how long ago a moment was that a rank has stored. Not ok: the rank
// cannot have stored this moment.
func waitedSince(now int64, since uint64) (waited time.Duration, ok bool) {
	if since > uint64(now)+uint64(clockSlack) {
		return 0, false
	}
	return time.Duration(now - int64(since)), true
}

// still returns those of the ranks that do not wait, or show a beat that does not move.
// This rank itself is awake, and waits.
func (tr *suspicion) still(w *waitGraph, ranks rankset.Set) (still rankset.Set) {
	for r := range ranks.Without(w.self).All() {
		p := &w.peers[r]
		if p.waitsFor().Load() == 0 || p.beat().Load() == tr.beats[r] {
			still = still.With(r)
		}
	}
	return still
}

// breakCircle returns, among ranks that wait only for one another, the rank that has
// waited longest. It does so once such a circle has been found several times.
func (tr *suspicion) breakCircle(w *waitGraph, seen rankset.Set) rankset.Set {
	if tr.excuses++; tr.excuses < maxExcuses || seen.Empty() {
		return rankset.Set{}
	}
	worst := lowest(seen)
	for r := range seen.All() {
		if w.peers[r].since().Load() < w.peers[worst].since().Load() {
			worst = r
		}
	}
	return rankset.Of(worst)
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// lowest returns the lowest rank of a set; -1 for the empty set.
func lowest(ranks rankset.Set) int {
	if ranks.Empty() {
		return -1
	}
	return ranks.Min()
}
