// Package suspicion is the failure detector: which rank a deadline blames. Ranks show in
// their control pages which ranks they wait for, and that they live. docs/protocol.md
// has the rules.
package suspicion

import (
	"runtime"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Graph is what a suspicion looks at: which rank waits for which ranks.
type Graph struct {
	Peers        []Peer
	Self         int
	Members      rankset.Set   // of the detector's epoch, now
	Timeout      time.Duration // of a wait, as the detecting rank has it
	PollInterval time.Duration // of a wait's sleeps
	Age          time.Duration // the most that words of other ranks may be old
	Clock        *telemetry.Clock
}

// Suspicion finds the straggler that causes a delay. The rank that is waited for may be
// blocked: alive, and late only because it waits for another rank itself. A
// blocked rank shows which ranks it waits for and since when, and its beat moves. So the
// suspicion compares beats over a while. Its owner guards it.
type Suspicion struct {
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
	minSleeps  = 8
	minAges    = 4
	minLooks   = 4
	maxExcuses = 3
)

// Decision of a suspicion: the ranks to fence, or, if there are none, until when to wait.
type Decision struct {
	Causes rankset.Set
	Until  time.Time
}

// Look opens the suspicion or goes on with it.
func (tr *Suspicion) Look(now time.Time, w *Graph, waiting rankset.Set) (v Decision, decided bool) {
	if !tr.open {
		tr.begin(now, w.Peers)
		return Decision{}, false
	}
	tr.looks++
	if tr.looks < minLooks || now.Sub(tr.since) < max(minSleeps*w.PollInterval, minAges*w.Age) {
		return Decision{}, false
	}
	tr.open = false
	return tr.decide(now, w, waiting), true
}

// Restart makes the next look the first one.
func (tr *Suspicion) Restart() { tr.open = false }

// Reset makes it a new suspicion.
func (tr *Suspicion) Reset() { tr.open, tr.excuses = false, 0 }

// WordAge is how old the words of remote ranks may be; 0 without any.
func WordAge(dom domain.Domain) time.Duration {
	if remote := dom.Remote(); remote != nil {
		return remote.WordAge()
	}
	return 0
}

func (tr *Suspicion) begin(now time.Time, peers []Peer) {
	tr.open, tr.since, tr.looks = true, now, 0
	for r := range peers {
		if peers[r].Proc != nil {
			tr.beats[r] = peers[r].Beat().Load()
		}
	}
}

// decide blames the stragglers, which are at the ends of the chains of waits: they do
// not wait, or their beat stands still. A straggler behind a blocked rank gets as much
// time, from the beginning of that rank's wait, as this rank gives its own wait.
func (tr *Suspicion) decide(now time.Time, w *Graph, waiting rankset.Set) (v Decision) {
	members := w.Members
	todo, seen, early := waiting.And(members), rankset.Set{}, rankset.Set{}
	causes := tr.still(w, todo)
	for todo = todo.Minus(causes); !todo.Empty(); {
		m := todo.Min()
		seen = seen.With(m)
		p := &w.Peers[m]
		next := rankset.FromWord(p.WaitsFor().Load()).And(members)
		waited, ok := waitedSince(w.Clock.At(now), p.Since().Load())
		if !ok { // its words are wild: the ranks that it names are not the cause
			causes, todo = causes.With(m), todo.Minus(seen)
			continue
		}
		end := now.Add(w.Timeout - waited)
		still := tr.still(w, next)
		if now.Before(end) && !still.Empty() {
			early = early.Or(still)
			v.Until = earlier(v.Until, end)
		} else {
			causes = causes.Or(still)
		}
		todo = todo.Or(next.Minus(still)).Minus(seen)
	}
	if v.Causes = causes; causes.Empty() && early.Empty() {
		v.Causes = tr.breakCircle(w, seen)
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
func (tr *Suspicion) still(w *Graph, ranks rankset.Set) (still rankset.Set) {
	for r := range ranks.Without(w.Self).All() {
		p := &w.Peers[r]
		if p.WaitsFor().Load() == 0 || p.Beat().Load() == tr.beats[r] {
			still = still.With(r)
		}
	}
	return still
}

// breakCircle returns, among ranks that wait only for one another, the rank that has
// waited longest. It does so once such a circle has been found several times.
func (tr *Suspicion) breakCircle(w *Graph, seen rankset.Set) rankset.Set {
	if tr.excuses++; tr.excuses < maxExcuses || seen.Empty() {
		return rankset.Set{}
	}
	worst := seen.Min()
	for r := range seen.All() {
		if w.Peers[r].Since().Load() < w.Peers[worst].Since().Load() {
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

// PollIntervalFor is how long a wait may sleep before it shows that it is alive.
// Where ranks share processors, each gets its turn less often.
func PollIntervalFor(ranks int) time.Duration {
	cpus := runtime.NumCPU()
	perCPU := (ranks + cpus - 1) / cpus
	return min(time.Duration(perCPU)*time.Millisecond, 5*time.Millisecond)
}
