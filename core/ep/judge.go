package ep

import (
	"math/bits"
	"time"

	"github.com/moewire/moewire/core/ep/membership"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
)

// Judge decides on ranks that something waits for which is not in this package,
// a device: by the words and rules of this one. It shows the others what this
// rank waits for, hears who has ended and who writes nothing more, and holds the
// trials of ranks that are late. One goroutine at a time.
type Judge struct {
	dom      transport.Domain
	epoch    uint16
	peers    []peer
	trial    trial
	clock    telemetry.Clock
	patience time.Duration
}

// NewJudge judges in an epoch of a domain, among the ranks that are present
// now. Each epoch needs another one.
func NewJudge(dom transport.Domain, epoch uint16) *Judge {
	j := &Judge{
		dom: dom, epoch: epoch, peers: make([]peer, dom.NumRanks()),
		clock: telemetry.NewClock(), patience: patienceFor(dom.NumRanks()),
	}
	for r := range j.peers {
		j.peers[r] = newPeer(dom, r)
	}
	return j
}

// Patience is how often a wait shows that it is alive.
func (j *Judge) Patience() time.Duration { return j.patience }

// Show tells the others whom this rank waits for and since when, and that it is
// alive. No ranks: it does not wait.
func (j *Judge) Show(waiting uint64, since time.Time) {
	own := &j.peers[j.dom.Rank()]
	if waiting != 0 {
		ensure(own.since(), uint64(j.clock.At(since)))
	}
	ensure(own.waitsFor(), waiting)
	own.beat().Add(1)
}

// all has one bit per rank of the group. The member word may have bits that cannot be.
func (j *Judge) all() uint64 { return 1<<len(j.peers) - 1 }

// Dying returns those of the ranks whose process is about to end or has.
func (j *Judge) Dying(ranks uint64) (dying uint64) {
	for rest := ranks & j.all(); rest != 0; rest &= rest - 1 {
		if p := j.peers[bits.TrailingZeros64(rest)].proc; p != nil && p.Dying() {
			dying |= rest & -rest
		}
	}
	return dying
}

// Silent returns those of the ranks that are known to write nothing more of the
// epoch: ended, or they say so.
func (j *Judge) Silent(ranks uint64) (silent uint64) {
	for rest := ranks & j.all(); rest != 0; rest &= rest - 1 {
		if p := &j.peers[bits.TrailingZeros64(rest)]; p.proc == nil || p.silent(j.epoch) {
			silent |= rest & -rest
		}
	}
	return silent
}

// SayQuiet promises that this rank writes nothing more in the epoch.
func (j *Judge) SayQuiet() { j.peers[j.dom.Rank()].quiet().Store(uint64(j.epoch) + 1) }

// Reset ends a trial without a verdict: the group has changed, or nobody is
// late any more.
func (j *Judge) Reset() { j.trial.open, j.trial.excuses = false, 0 }

// Try looks for the cause of waits for some ranks that are past the deadline of
// timeout. It takes a few looks until it has decided; then causes are the ranks to
// expel; if there are none, nobody is to be blamed before until.
func (j *Judge) Try(now time.Time, waiting uint64, timeout time.Duration) (causes uint64, until time.Time, decided bool) {
	set := membership.Set(j.dom.Members().Load())
	if !set.In(j.epoch, j.dom.Rank()) {
		return 0, time.Time{}, true
	}
	v, decided := j.trial.look(now, &hearing{
		peers: j.peers, self: j.dom.Rank(), members: set.Ranks() & j.dom.Present(), timeout: timeout,
		patience: j.patience, age: wordAge(j.dom), clock: &j.clock,
	}, waiting)
	return v.causes, v.until, decided
}
