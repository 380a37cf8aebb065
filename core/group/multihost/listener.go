package multihost

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// Listener is a rank on its way to one rendezvous. Its methods are safe for
// concurrent use.
type Listener struct {
	cfg    Config
	info   Info
	local  *shm.Listener
	domain *Domain // of Relist; nil after Open

	mu              sync.Mutex // held by Connect and Reconnect
	controlListener *link.Listener
	used            bool

	closing sync.Once
	cancel  chan struct{}
}

// Open makes this rank's memory and its listeners. It starts no goroutine. The
// Listener must be closed or given to Connect.
func Open(cfg Config) (*Listener, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("multihost: configuration: %w", err)
	}
	local, err := shm.Open(cfg.Shm)
	if err != nil {
		return nil, err
	}
	return newListener(cfg, local, nil)
}

// Relist makes a listener for another rendezvous of a rank that has a domain, as
// shm.Relist does.
func Relist(d *Domain, params []byte) (*Listener, error) {
	local, err := shm.Relist(d.local, params)
	if err != nil {
		return nil, err
	}
	return newListener(d.cfg, local, d)
}

// newListener owns local, also on an error.
func newListener(cfg Config, local *shm.Listener, d *Domain) (*Listener, error) {
	host, err := thisHost(cfg.Host)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	l := &Listener{cfg: cfg, local: local, domain: d, cancel: make(chan struct{})}
	l.info = Info{
		Shm: local.Info(), Survivor: d != nil, Setting: cfg.Setting, Bound: cfg.Bound.Truncate(time.Millisecond),
		Protection: cfg.Protection,
		host:       host, local: local.Metadata(),
	}
	rand.Read(l.info.id[:]) // never fails
	if d != nil {
		l.info.Epoch = epochOf(d.local.Members().Load())
	}
	if cfg.reachable() == nil && cfg.Setting != Shm {
		if cfg.Listen.Port() != 0 && d != nil {
			d.yieldListener()
		}
		if l.controlListener, err = link.Listen(cfg.Listen); err != nil {
			return nil, errors.Join(err, local.Close())
		}
		l.info.Addr, l.info.Liveness = l.controlListener.Addr(), l.controlListener.Liveness().Port()
	}
	return l, nil
}

// Metadata returns what all other ranks need for this rendezvous: a few hundred
// bytes, without secrets.
func (l *Listener) Metadata() []byte { return l.info.marshal() }

// Connect joins the group: all[r] is the metadata of rank r, empty for a rank
// that is absent. It returns when every present rank has everything from every
// other. What shm.Listener.Connect says holds here, too.
func (l *Listener) Connect(all [][]byte, deadline time.Duration) (d *Domain, err error) {
	if l.domain != nil {
		return nil, domain.Connecting(errors.New("a survivor reconnects"))
	}
	err = l.rendezvous(all, deadline, func(r *participants, until time.Time) (err error) {
		d, err = l.connect(r, until)
		return err
	})
	return d, domain.Connecting(err)
}

// rendezvous runs f with the ranks that have given their metadata, and uses the listener up.
func (l *Listener) rendezvous(all [][]byte, deadline time.Duration, f func(r *participants, until time.Time) error) error {
	r, err := l.plan(all, deadline)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.use(); err != nil {
		return err
	}
	defer l.drop()
	return f(r, time.Now().Add(deadline))
}

func (l *Listener) plan(all [][]byte, deadline time.Duration) (*participants, error) {
	if deadline <= 0 {
		return nil, fmt.Errorf("a deadline of %v is not positive", deadline)
	}
	r, err := parseAll(all, &l.info)
	if err == nil {
		err = r.allowed(&l.cfg)
	}
	return r, err
}

// use marks the listener as used up.
func (l *Listener) use() error {
	select {
	case <-l.cancel:
		return fmt.Errorf("listener: %w", transport.ErrClosed)
	default:
	}
	if l.used {
		return fmt.Errorf("listener: %w", transport.ErrClosed)
	}
	l.used = true
	return nil
}

func (l *Listener) connect(r *participants, until time.Time) (*Domain, error) {
	local, err := l.local.ConnectWith(r.localOnly(), r.first(), time.Until(until))
	if err != nil {
		return nil, err
	}
	d := newDomain(l.cfg, local)
	v, links, err := d.gather(l, r, until)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.install(r, v, links)
	return d, nil
}

// first is what a host's fresh members page gets: the whole group, in the
// epoch that the survivors come from, or 1.
func (r *participants) first() uint64 {
	epoch := membership.Epoch(1)
	if r.survivors {
		epoch = r.epoch
	}
	return uint64(membership.New(epoch, r.present))
}

// Close gives everything up. Idempotent. It ends a Connect or Reconnect that
// is running, and does nothing to a domain.
func (l *Listener) Close() error {
	err := l.interrupt()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
	return err
}

// interrupt ends a rendezvous that is running.
func (l *Listener) interrupt() (err error) {
	l.closing.Do(func() {
		close(l.cancel)
		err = l.local.Close()
	})
	return err
}

// drop is called with mu held.
func (l *Listener) drop() {
	if l.controlListener != nil {
		_ = l.controlListener.Close()
	}
}

// explain begins what Paths says, from the metadata. A remote rank has no carrier yet.
func (r *participants) explain() []Path {
	paths := make([]Path, len(r.infos))
	for rank := range paths {
		p := &paths[rank]
		*p = Path{Rank: rank, Carrier: "shm", Why: r.why[rank]}
		switch {
		case rank == r.self:
			p.Carrier = "self"
		case !r.present.Has(rank):
			p.Carrier, p.Why = "", "absent"
		case !r.local.Has(rank):
			p.Carrier = ""
		}
	}
	return paths
}

// sameProcess reports whether a rank's number is held by the process that held
// it at an earlier rendezvous.
func (r *participants) sameProcess(before *participants, rank int) bool {
	a, b := &r.infos[rank].Shm.Identity, &before.infos[rank].Shm.Identity
	return before.present.Has(rank) && bytes.Equal(a[:], b[:])
}
