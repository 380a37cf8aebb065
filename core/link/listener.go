package link

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
)

// Listener is where the control connections of one rendezvous arrive.
type Listener struct {
	fd, livenessFD *sys.FD
	addr, liveness netip.AddrPort
}

// backlog of a listener: every rank may come at once, and other clients, too.
const backlog = 4 * rankset.MaxRanks

// Listen opens a listener at an address of this host; port 0 lets the system
// choose. Close it, or give it to StartControls. Its liveness port is always
// chosen by the system.
func Listen(addr netip.AddrPort) (e *Listener, err error) {
	e = &Listener{}
	if e.fd, e.addr, err = sys.ListenTCP(addr, backlog); err == nil {
		e.livenessFD, e.liveness, err = sys.ListenTCP(netip.AddrPortFrom(addr.Addr(), 0), backlog)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("link: listening at %v: %w", addr, err), e.Close())
	}
	return e, nil
}

// Addr is the address with its port.
func (e *Listener) Addr() netip.AddrPort { return e.addr }

// Liveness is the address of the liveness port.
func (e *Listener) Liveness() netip.AddrPort { return e.liveness }

// Close is idempotent.
func (e *Listener) Close() error { return errors.Join(e.fd.Close(), e.livenessFD.Close()) }
