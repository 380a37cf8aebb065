package suspicion

import (
	"time"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Detector decides which ranks are lost or late for waits of a device. It shows the
// others which ranks this rank waits for. It says which ranks have ended or write nothing
// more, and keeps the suspicion of ranks that are late. One goroutine at a time.
type Detector struct {
	dom          domain.Domain
	epoch        membership.Epoch
	peers        []Peer
	suspicion    Suspicion
	clock        telemetry.Clock
	pollInterval time.Duration
}

// NewDetector returns a detector for one epoch of a domain, among the ranks that
// are present now. Each epoch needs a new one.
func NewDetector(dom domain.Domain, epoch membership.Epoch) *Detector {
	d := &Detector{
		dom: dom, epoch: epoch, peers: make([]Peer, dom.NumRanks()),
		clock: telemetry.NewClock(), pollInterval: PollIntervalFor(dom.NumRanks()),
	}
	for r := range d.peers {
		d.peers[r] = NewPeer(dom, r)
	}
	return d
}

// Show tells the others which ranks this rank waits for and since when, and that it is
// alive. No ranks: it does not wait.
func (d *Detector) Show(waiting rankset.Set, since time.Time) {
	own := &d.peers[d.dom.Rank()]
	if !waiting.Empty() {
		protocol.Ensure(own.Since(), uint64(d.clock.At(since)))
	}
	protocol.Ensure(own.WaitsFor(), waiting.Word())
	own.Beat().Add(1)
}

// all are the ranks of the group. The member word may have bits of ranks that do
// not exist.
func (d *Detector) all() rankset.Set { return rankset.Upto(len(d.peers)) }

// Dying returns those of the ranks whose process is about to end or has ended.
func (d *Detector) Dying(ranks rankset.Set) (dying rankset.Set) {
	for r := range ranks.And(d.all()).All() {
		if p := d.peers[r].Proc; p != nil && p.Dying() {
			dying = dying.With(r)
		}
	}
	return dying
}

// Process is the process behind a rank in this epoch; nil: the rank is absent.
func (d *Detector) Process(rank int) domain.Process { return d.peers[rank].Proc }

// Quiesced returns those of the ranks that are known to write nothing more in the
// epoch: they have ended, or say so.
func (d *Detector) Quiesced(ranks rankset.Set) (quiesced rankset.Set) {
	for r := range ranks.And(d.all()).All() {
		if p := &d.peers[r]; p.Proc == nil || p.IsQuiesced(d.epoch) {
			quiesced = quiesced.With(r)
		}
	}
	return quiesced
}

// PublishQuiesced promises that this rank writes nothing more in the epoch.
func (d *Detector) PublishQuiesced() {
	d.peers[d.dom.Rank()].Quiesced().Store(uint64(d.epoch) + 1)
}

// Reset ends a suspicion without a decision: the group has changed, or no rank is
// late any more.
func (d *Detector) Reset() { d.suspicion.Reset() }

// Try looks for the cause of waits for some ranks that are past the deadline of
// timeout. It takes a few looks until it has decided. Then causes are the ranks to
// expel; if there are none, no rank is to be blamed before until.
func (d *Detector) Try(now time.Time, waiting rankset.Set, timeout time.Duration) (causes rankset.Set, until time.Time, decided bool) {
	set := membership.Members(d.dom.Members().Load())
	if !set.In(d.epoch, d.dom.Rank()) {
		return rankset.Set{}, time.Time{}, true
	}
	v, decided := d.suspicion.Look(now, &Graph{
		Peers: d.peers, Self: d.dom.Rank(), Members: set.Ranks().And(d.dom.Present()), Timeout: timeout,
		PollInterval: d.pollInterval, Age: WordAge(d.dom), Clock: &d.clock,
	}, waiting)
	return v.Causes, v.Until, decided
}
