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

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// Config says what Open makes.
type Config struct {
	// Rank of this process, 0 ≤ Rank < NumRanks ≤ transport.MaxRanks.
	Rank, NumRanks int
	// ControlBytes is the size of the control region, a positive multiple
	// of 8, equal on all ranks.
	ControlBytes int64
	// ABIVersion must be equal on all ranks.
	ABIVersion uint32
	// Params are the caller's own, at most 256 bytes. They travel in the
	// metadata and are compared by nobody here.
	Params []byte
}

// Listener is a rank between Open and Connect: it owns its memory and waits
// under a random abstract name. Its methods are safe for concurrent use.
type Listener struct {
	info Info

	cancelMu sync.Mutex // guards closing and signalling cancel; after mu
	cancel   *sys.FD    // readable once Close was called

	mu      sync.Mutex // guards what follows; Connect holds it throughout
	own     *member
	members *sys.FD // rank 0: the page that everybody gets
	socket  *sys.FD
	closed  atomic.Bool
}

// Open makes this rank's memory and its listener. It starts no thread and
// leaves nothing in any file system. The Listener must be closed or given to
// Connect.
func Open(cfg Config) (*Listener, error) {
	info := Info{
		ABIVersion: cfg.ABIVersion, Rank: cfg.Rank, NumRanks: cfg.NumRanks, PID: sys.Getpid(),
		ControlBytes: cfg.ControlBytes, Params: bytes.Clone(cfg.Params),
	}
	rand.Read(info.Nonce[:]) // never fails
	var name [16]byte
	rand.Read(name[:])
	info.Socket = "moewire-" + hex.EncodeToString(name[:])
	if err := info.check(); err != nil {
		return nil, fmt.Errorf("shm: configuration: %w", err)
	}
	l := &Listener{info: info}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("shm: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

func (l *Listener) open() (err error) {
	if l.cancel, err = sys.NewEvent(); err != nil {
		return err
	}
	if l.own, err = newOwnMember(l.info.Rank, l.info.ControlBytes); err != nil {
		return err
	}
	if l.info.Rank == 0 {
		if l.members, err = newMembersPage(l.info.NumRanks); err != nil {
			return err
		}
	}
	l.socket, err = sys.ListenAbstract(l.info.Socket, 4*transport.MaxRanks)
	return err
}

// newMembersPage makes the group's page: epoch 1, all ranks set. It is
// complete before anybody can fetch it.
func newMembersPage(numRanks int) (*sys.FD, error) {
	fd, err := sys.NewMemfd("moewire-members")
	if err != nil {
		return nil, err
	}
	page, err := mapMembers(fd, true)
	if err != nil {
		return nil, errors.Join(err, fd.Close())
	}
	page.Word(0).Store(1<<48 | (1<<numRanks - 1))
	page.Release()
	return fd, nil
}

// mapMembers maps the members page, after making it (fresh) or checking its
// size.
func mapMembers(fd *sys.FD, fresh bool) (*region, error) {
	n := int64(sys.PageSize())
	var err error
	if fresh {
		err = sys.Grow(fd, n)
	} else {
		err = checkFile(fd, n)
	}
	if err != nil {
		return nil, err
	}
	return mapRegion(fd, 0, 0, n)
}

// Metadata returns what all other ranks need for Connect: about 120 bytes
// and the params, without secrets that would let another user in.
func (l *Listener) Metadata() []byte { return l.info.marshal() }

// Info returns what Metadata encodes.
func (l *Listener) Info() Info { return l.info }

// Connect joins the group: all[r] is the metadata of rank r. It returns when
// every rank has everything from every other, so that a rank may close at
// once without disturbing a slower one. It starts no goroutine of its own.
//
// It uses the Listener up, in failure too, except when the metadata is not
// usable (transport.ErrMetadata, transport.ErrMismatch): then nothing has
// happened and Connect may be called again. A rank that does not come within
// the deadline gives an error that names it and wraps
// os.ErrDeadlineExceeded; Close from another goroutine ends it with
// transport.ErrClosed.
func (l *Listener) Connect(all [][]byte, deadline time.Duration) (transport.Domain, error) {
	if deadline <= 0 {
		return nil, fmt.Errorf("shm: connect: a deadline of %v is not positive", deadline)
	}
	infos, err := parseAll(all, &l.info)
	if err != nil {
		return nil, fmt.Errorf("shm: connect: %w", err)
	}
	until := time.Now().Add(deadline)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() || l.own == nil {
		return nil, fmt.Errorf("shm: connect: listener: %w", transport.ErrClosed)
	}
	d, err := l.connect(infos, until)
	l.drop()
	if err != nil {
		return nil, fmt.Errorf("shm: connect: %w", err)
	}
	return d, nil
}

func (l *Listener) connect(infos []Info, until time.Time) (*domain, error) {
	m := &meeting{
		self: l.info.Rank, infos: infos, until: until, cancel: l.cancel,
		socket: l.socket, own: l.own, membersFD: l.members, peers: make([]*member, len(infos)),
	}
	err := m.run()
	m.dismissVisitors()
	if err == nil {
		var d *domain
		if d, err = newDomain(m); err == nil {
			l.own, l.members = nil, nil // now the domain's
			return d, nil
		}
	}
	m.abandon(err)
	return nil, err
}

// Close gives everything up. Idempotent. It ends a Connect that is running,
// and does nothing to a domain that Connect has returned.
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
		l.own.drop()
		l.own = nil
	}
	sys.CloseAll(l.socket, l.members)
	l.members = nil
	l.cancelMu.Lock()
	defer l.cancelMu.Unlock()
	sys.CloseAll(l.cancel)
}

// interrupt ends the waits of a Connect that is running.
func (l *Listener) interrupt() {
	l.cancelMu.Lock()
	defer l.cancelMu.Unlock()
	if l.cancel != nil && l.cancel.Raw() >= 0 {
		_ = sys.Signal(l.cancel)
	}
}
