package multihost

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/link"
)

// peer is one incarnation of a remote rank. It implements domain.Process.
type peer struct {
	rank    int
	link    atomic.Pointer[link.Link] // nil until the rendezvous has made it
	works   atomic.Pointer[link.Link] // the one over which bytes have reached the peer
	control domain.Segment
	lost    atomic.Pointer[error]
	how     atomic.Pointer[string] // what was said of the end
	suspect atomic.Bool            // unresponsive, or has closed
}

var _ domain.Process = (*peer)(nil)

// Lost is an error once the system of the peer's host has said that the
// process has ended.
func (p *peer) Lost() error {
	if err := p.lost.Load(); err != nil {
		return *err
	}
	return nil
}

// Dying also reports a rank that has been unresponsive for the bound, that has closed its
// domain, or that cannot be reached any more. It does not while a link that broke is
// being reconnected.
func (p *peer) Dying() bool {
	l := p.link.Load()
	return p.suspect.Load() || p.lost.Load() != nil || l != nil && l.Err() != nil
}

// PID is 0: the process is another system's.
func (p *peer) PID() int { return 0 }

// HowLost is how the end of the process became known, and of which host; "" while it is not.
func (p *peer) HowLost() string {
	if how := p.how.Load(); how != nil {
		return *how
	}
	return ""
}

func (p *peer) die(at netip.AddrPort, how error) {
	text := how.Error()
	if inner := errors.Unwrap(how); inner != nil {
		text = inner.Error() // without the rank, which the reader knows
	}
	if at.IsValid() {
		text = fmt.Sprintf("%s (host %v)", text, at.Addr())
	}
	p.how.CompareAndSwap(nil, &text)
	err := fmt.Errorf("rank %d: %w: %w", p.rank, domain.ErrExited, how)
	p.lost.CompareAndSwap(nil, &err)
}
