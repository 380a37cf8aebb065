package cpu

import (
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// FailureDetector decides which ranks are lost or late for waits outside this package,
// those of a device. It uses the control words and the rules of this package. It shows the
// others which ranks this rank waits for. It says which ranks have ended or write nothing
// more, and keeps the suspicion of ranks that are late. One goroutine at a time.
type FailureDetector struct {
	dom          domain.Domain
	epoch        uint16
	peers        []peer
	suspicion    suspicion
	clock        telemetry.Clock
	pollInterval time.Duration
}

// NewFailureDetector returns a detector for one epoch of a domain, among the ranks that
// are present now. Each epoch needs a new one.
func NewFailureDetector(dom domain.Domain, epoch uint16) *FailureDetector {
	d := &FailureDetector{
		dom: dom, epoch: epoch, peers: make([]peer, dom.NumRanks()),
		clock: telemetry.NewClock(), pollInterval: pollIntervalFor(dom.NumRanks()),
	}
	for r := range d.peers {
		d.peers[r] = newPeer(dom, r)
	}
	return d
}

// Show tells the others which ranks this rank waits for and since when, and that it is
// alive. No ranks: it does not wait.
func (d *FailureDetector) Show(waiting rankset.Set, since time.Time) {
	own := &d.peers[d.dom.Rank()]
	if !waiting.Empty() {
		ensure(own.since(), uint64(d.clock.At(since)))
	}
	ensure(own.waitsFor(), waiting.Word())
	own.beat().Add(1)
}

// all are the ranks of the group. The member word may have bits of ranks that do
// not exist.
func (d *FailureDetector) all() rankset.Set { return rankset.Upto(len(d.peers)) }

// Dying returns those of the ranks whose process is about to end or has ended.
func (d *FailureDetector) Dying(ranks rankset.Set) (dying rankset.Set) {
	for r := range ranks.And(d.all()).All() {
		if p := d.peers[r].proc; p != nil && p.Dying() {
			dying = dying.With(r)
		}
	}
	return dying
}

// Quiesced returns those of the ranks that are known to write nothing more in the
// epoch: they have ended, or say so.
func (d *FailureDetector) Quiesced(ranks rankset.Set) (quiesced rankset.Set) {
	for r := range ranks.And(d.all()).All() {
		if p := &d.peers[r]; p.proc == nil || p.isQuiesced(d.epoch) {
			quiesced = quiesced.With(r)
		}
	}
	return quiesced
}

// PublishQuiesced promises that this rank writes nothing more in the epoch.
func (d *FailureDetector) PublishQuiesced() {
	d.peers[d.dom.Rank()].quiesced().Store(uint64(d.epoch) + 1)
}

// Reset ends a suspicion without a decision: the group has changed, or no rank is
// late any more.
func (d *FailureDetector) Reset() { d.suspicion.open, d.suspicion.excuses = false, 0 }

// Try looks for the cause of waits for some ranks that are past the deadline of
// timeout. It takes a few looks until it has decided. Then causes are the ranks to
// expel; if there are none, no rank is to be blamed before until.
func (d *FailureDetector) Try(now time.Time, waiting rankset.Set, timeout time.Duration) (causes rankset.Set, until time.Time, decided bool) {
	set := membership.Members(d.dom.Members().Load())
	if !set.In(d.epoch, d.dom.Rank()) {
		return rankset.Set{}, time.Time{}, true
	}
	v, decided := d.suspicion.look(now, &waitGraph{
		peers: d.peers, self: d.dom.Rank(), members: set.Ranks().And(d.dom.Present()), timeout: timeout,
		pollInterval: d.pollInterval, age: wordAge(d.dom), clock: &d.clock,
	}, waiting)
	return v.causes, v.until, decided
}
