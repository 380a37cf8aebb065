package shm

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Config says what Open makes.
type Config struct {
	// Rank of this process, 0 ≤ Rank < NumRanks ≤ rankset.MaxRanks.
	Rank, NumRanks int
	// ControlBytes is the size of the control region, a positive multiple
	// of 8, equal on all ranks.
	ControlBytes int64
	// ABIVersion must be equal on all ranks.
	ABIVersion uint32
	// Params are the caller's own, at most 256 bytes. They travel in the metadata; this
	// package does not compare them.
	Params []byte
	// Pages are this rank's own choice.
	Pages Pages
}

// Listener is a rank on its way to one rendezvous: it waits under a random
// abstract name, with fresh memory (Open) or that of a domain (Relist). Its
// methods are safe for concurrent use.
type Listener struct {
	info   Info
	domain *hostDomain // of Relist; nil after Open
	pages  Pages       // of Open

	cancelMu sync.Mutex // guards closing and signalling cancel; after mu
	cancel   *sys.FD    // readable once Close was called

	mu      sync.Mutex // guards what follows; Connect and Reconnect hold it
	own     *member    // of Open
	memory  *sys.FD    // of Relist: its own descriptors of the domain's files
	members *sys.FD
	socket  *sys.FD
	closed  atomic.Bool
}

// Open makes this rank's memory and its listener. It starts no thread and
// leaves nothing in any file system. The first one of a process raises its limit of
// descriptors (sys.RaiseOpenFiles). The Listener must be closed or given to
// Connect.
func Open(cfg Config) (*Listener, error) {
	info := Info{
		ABIVersion: cfg.ABIVersion, Rank: cfg.Rank, NumRanks: cfg.NumRanks,
		ControlBytes: cfg.ControlBytes, Params: bytes.Clone(cfg.Params),
	}
	rand.Read(info.Identity[:]) // never fails
	_, _ = sys.RaiseOpenFiles() // where it fails, the call that lacks a descriptor says so
	l := &Listener{info: info, pages: cfg.Pages}
	err := l.pages.open()
	if err == nil {
		err = l.name()
	}
	if err != nil {
		return nil, fmt.Errorf("shm: configuration: %w", err)
	}
	if l.own, err = newOwnMember(&l.info, &l.pages); err == nil {
		err = l.listen()
	}
	if err != nil {
		return nil, fmt.Errorf("shm: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

// name makes the listener's metadata unlike any other's.
func (l *Listener) name() error {
	var name [16]byte
	rand.Read(name[:])
	rand.Read(l.info.Nonce[:])
	l.info.Socket = "moewire-" + hex.EncodeToString(name[:])
	l.info.PID = sys.Getpid()
	return l.info.check()
}

func (l *Listener) listen() (err error) {
	if l.cancel, err = sys.NewEvent(); err != nil {
		return err
	}
	l.socket, err = sys.ListenAbstract(l.info.Socket, 4*rankset.MaxRanks)
	return err
}

// Metadata returns what all other ranks need for this rendezvous: about 140
// bytes and the params, without secrets that would let another user in.
func (l *Listener) Metadata() []byte { return l.info.marshal() }

// Info returns what Metadata encodes.
func (l *Listener) Info() Info { return l.info }

// Connect joins the group: all[r] is the metadata of rank r, empty for a rank that is
// absent. It returns when every present rank has everything from every other, so that a
// rank may close at once without disturbing a slower one. It starts no goroutine of its
// own. A group that meets for the first time gets a fresh members word: epoch 1, the
// present ranks. A rank that joins a group with survivors gets their word and leaves it
// as it is.
//
// It uses the Listener up, in failure too, except when the metadata is not
// usable (domain.ErrMetadata, transport.ErrMismatch): then nothing has
// happened and Connect may be called again. A rank that does not come within
// the deadline gives an error that names it and wraps
// os.ErrDeadlineExceeded; Close from another goroutine ends it with
// transport.ErrClosed.
func (l *Listener) Connect(all [][]byte, deadline time.Duration) (domain.Domain, error) {
	return l.ConnectWith(all, 0, deadline)
}

// ConnectWith is Connect for the part of a group that is on this host: a fresh
// members word gets the value first, equal on all ranks, for the whole group.
// 0 stands for Connect's.
func (l *Listener) ConnectWith(all [][]byte, first uint64, deadline time.Duration) (domain.Domain, error) {
	if l.domain != nil {
		return nil, domain.Connecting(errors.New("a survivor reconnects"))
	}
	m, err := l.plan(all, deadline)
	if err != nil {
		return nil, domain.Connecting(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() || l.own == nil {
		return nil, domain.Connecting(fmt.Errorf("listener: %w", transport.ErrClosed))
	}
	if m.first = first; first == 0 {
		m.first = uint64(membership.New(1, m.present))
	}
	d, err := l.connect(m)
	l.drop()
	if err != nil {
		return nil, domain.Connecting(err)
	}
	return d, nil
}

// plan reads the metadata.
func (l *Listener) plan(all [][]byte, deadline time.Duration) (*rendezvous, error) {
	if deadline <= 0 {
		return nil, fmt.Errorf("a deadline of %v is not positive", deadline)
	}
	participants, err := parseAll(all, &l.info)
	if err != nil {
		return nil, err
	}
	return &rendezvous{
		participants: participants, self: l.info.Rank, until: time.Now().Add(deadline), peers: make([]*participant, len(all)),
	}, nil
}

func (l *Listener) connect(m *rendezvous) (d *hostDomain, err error) {
	if m.source() == m.self {
		if m.membersFD, err = newMembersPage(m.first); err != nil {
			return nil, err
		}
	}
	m.cancel, m.socket, m.memory = l.cancel, l.socket, l.own.memory
	if err = m.hold(); err == nil {
		if d, err = newDomain(m, l.own, l.info, l.pages); err == nil {
			l.own = nil // now the domain's
			return d, nil
		}
	}
	m.abandon(err)
	return nil, err
}

// Close gives everything up. Idempotent. It ends a Connect or Reconnect that
// is running, and does nothing to a domain that Connect has returned or
// Relist was given.
func (l *Listener) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	l.interrupt()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop()
	return nil
}

// drop closes what is still the listener's. It is called with mu held.
func (l *Listener) drop() {
	if l.own != nil {
		l.own.end(l.info.Rank)
		l.own = nil
	}
	sys.CloseAll(l.socket, l.memory, l.members)
	l.memory = nil
	l.cancelMu.Lock()
	defer l.cancelMu.Unlock()
	sys.CloseAll(l.cancel)
}

// interrupt ends the waits of a rendezvous that is running.
func (l *Listener) interrupt() {
	l.cancelMu.Lock()
	defer l.cancelMu.Unlock()
	if l.cancel != nil && l.cancel.Raw() >= 0 {
		_ = sys.Signal(l.cancel)
	}
}
