package suspicion

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
)

// Peer is one rank as this rank sees it, this rank itself included. The zero
// value is an absent rank, which is in no member set of this rank.
type Peer struct {
	Proc    domain.Process
	Control domain.Segment
	Remote  bool // reached by messages: Control is a page of ours
}

// NewPeer returns a rank of a domain as it is now.
func NewPeer(dom domain.Domain, rank int) Peer {
	p := Peer{Proc: dom.Process(rank), Control: dom.Control(rank)}
	if remote := dom.Remote(); remote != nil {
		p.Remote = remote.Ranks().Has(rank)
	}
	return p
}

// WaitsFor has one bit for each rank that the peer waits for.
func (p *Peer) WaitsFor() *atomic.Uint64 { return p.Control.Word(layout.WaitsFor()) }

// Since is when the wait that WaitsFor shows began.
func (p *Peer) Since() *atomic.Uint64 { return p.Control.Word(layout.Since()) }

// Beat advances while the peer waits.
func (p *Peer) Beat() *atomic.Uint64 { return p.Control.Word(layout.Beat()) }

// Quiesced is one more than the last epoch in which the peer writes nothing more.
func (p *Peer) Quiesced() *atomic.Uint64 { return p.Control.Word(layout.Quiesced()) }

// IsQuiesced reports whether the rank is known to write nothing more in an epoch:
// its process has ended, or its buffer says so, or it is remote and cannot write itself.
func (p *Peer) IsQuiesced(epoch membership.Epoch) bool { return p.Remote || p.Ended(epoch) }

// maxQuiesced is for the last epoch that there can be.
const maxQuiesced = 1 << 16

// Ended reports whether the rank's process has ended, or its buffer says that it writes
// nothing more in the epoch.
func (p *Peer) Ended(epoch membership.Epoch) bool {
	if p.Proc.Lost() != nil {
		return true
	}
	quiesced := p.Quiesced().Load() // a wild one promises nothing
	return quiesced > uint64(epoch) && quiesced <= maxQuiesced
}
