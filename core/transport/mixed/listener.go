package mixed

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/shm"
)

// Listener is a rank on its way to one meeting. Its methods are safe for
// concurrent use.
type Listener struct {
	cfg    Config
	info   Info
	near   *shm.Listener
	domain *Domain // of Relist; nil after Open

	mu       sync.Mutex // held by Connect and Reconnect
	entrance *link.Entrance
	used     bool

	closing sync.Once
	cancel  chan struct{}
}

// Open makes this rank's memory and its listeners. It starts no goroutine. The
// Listener must be closed or given to Connect.
func Open(cfg Config) (*Listener, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("mixed: configuration: %w", err)
	}
	near, err := shm.Open(cfg.Shm)
	if err != nil {
		return nil, err
	}
	return newListener(cfg, near, nil)
}

// Relist makes a listener for another meeting of a rank that has a domain, as
// shm.Relist does.
func Relist(d *Domain, params []byte) (*Listener, error) {
	near, err := shm.Relist(d.near, params)
	if err != nil {
		return nil, err
	}
	return newListener(d.cfg, near, d)
}

// newListener owns near, also on an error.
func newListener(cfg Config, near *shm.Listener, d *Domain) (*Listener, error) {
	host, err := thisHost(cfg.Host)
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	l := &Listener{cfg: cfg, near: near, domain: d, cancel: make(chan struct{})}
	l.info = Info{
		Shm: near.Info(), Survivor: d != nil, Setting: cfg.Setting, Bound: cfg.Bound.Truncate(time.Millisecond),
		Protection: cfg.Protection,
		host:       host, near: near.Metadata(),
	}
	rand.Read(l.info.id[:]) // never fails
	if d != nil {
		l.info.Epoch = epochOf(d.near.Members().Load())
	}
	if cfg.reachable() == nil && cfg.Setting != Shm {
		if cfg.Listen.Port() != 0 && d != nil {
			d.yieldEntrance()
		}
		if l.entrance, err = link.Listen(cfg.Listen); err != nil {
			return nil, errors.Join(err, near.Close())
		}
		l.info.Addr, l.info.Liveness = l.entrance.Addr(), l.entrance.Liveness().Port()
	}
	return l, nil
}

// Metadata returns what all other ranks need for this meeting: a few hundred
// bytes, without secrets.
func (l *Listener) Metadata() []byte { return l.info.marshal() }

// Info returns what Metadata encodes.
func (l *Listener) Info() Info { return l.info }

// Connect joins the group: all[r] is the metadata of rank r, empty for a rank
// that is absent. It returns when every present rank has everything from every
// other. What shm.Listener.Connect says holds here, too.
func (l *Listener) Connect(all [][]byte, deadline time.Duration) (*Domain, error) {
	if l.domain != nil {
		return nil, transport.Connecting(errors.New("a survivor reconnects"))
	}
	r, err := l.plan(all, deadline)
	if err != nil {
		return nil, transport.Connecting(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.use(); err != nil {
		return nil, transport.Connecting(err)
	}
	d, err := l.connect(r, time.Now().Add(deadline))
	l.drop()
	if err != nil {
		return nil, transport.Connecting(err)
	}
	return d, nil
}

func (l *Listener) plan(all [][]byte, deadline time.Duration) (*roster, error) {
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

func (l *Listener) connect(r *roster, until time.Time) (*Domain, error) {
	near, err := l.near.ConnectWith(r.nearOnly(), r.first(), time.Until(until))
	if err != nil {
		return nil, err
	}
	d := newDomain(l.cfg, near)
	v, links, err := d.gather(l, r, until)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.install(r, v, links)
	return d, nil
}

// first is what a host's fresh members page gets: the whole group, in the
// epoch that the survivors come from, or 1.
func (r *roster) first() uint64 {
	epoch := uint16(1)
	if r.survivors {
		epoch = r.epoch
	}
	return uint64(epoch)<<48 | r.present
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

// interrupt ends a meeting that is running.
func (l *Listener) interrupt() (err error) {
	l.closing.Do(func() {
		close(l.cancel)
		err = l.near.Close()
	})
	return err
}

// drop is called with mu held.
func (l *Listener) drop() {
	if l.entrance != nil {
		_ = l.entrance.Close()
	}
}

// explain begins what Paths says, from the metadata.
func (r *roster) explain() []Path {
	paths := make([]Path, len(r.infos))
	for rank := range paths {
		p := &paths[rank]
		*p = Path{Rank: rank, Carrier: "shm", Why: r.why[rank]}
		switch {
		case rank == r.self:
			p.Carrier = "self"
		case r.present>>rank&1 == 0:
			p.Carrier, p.Why = "", "absent"
		}
	}
	return paths
}

// sameProcess reports whether a rank's number is held by the process that held
// it at an earlier meeting.
func (r *roster) sameProcess(before *roster, rank int) bool {
	a, b := &r.infos[rank].Shm.Identity, &before.infos[rank].Shm.Identity
	return before.present>>rank&1 == 1 && bytes.Equal(a[:], b[:])
}
