package cudaipc

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// listener lets in processes of the same user that know the nonce. It hands them a
// descriptor, or else notes that they hold what the memory descriptor names. One
// goroutine, which waits for no process in particular.
type listener struct {
	nonce   [nonceBytes]byte
	fd      *sys.FD // nil: processes that ask become holders
	socket  *sys.FD
	stop    *sys.FD
	closed  chan struct{} // no process comes in any more
	closing sync.Once
	pending accept.Pending[*sys.FD]

	mu      sync.Mutex // guards holders, which the goroutine alone changes
	holders []holder
}

// The listener holds so many pending connections, each for so long; the oldest goes first.
const (
	maxPending     = 2 * rankset.MaxRanks
	pendingTimeout = 5 * time.Second
	acceptRests    = 10 * time.Millisecond // when it cannot accept a connection
)

const (
	askMagic     = "MWGA"
	messageBytes = 4 + nonceBytes
)

func listenerOf(nonce [nonceBytes]byte, fd *sys.FD) *listener {
	return &listener{
		nonce: nonce, fd: fd, closed: make(chan struct{}),
		pending: accept.NewPending(maxPending, pendingTimeout, func(conn *sys.FD) { sys.CloseAll(conn) }),
	}
}

// openListener owns fd, also when it fails.
func openListener(name string, nonce [nonceBytes]byte, fd *sys.FD) (*listener, error) {
	d := listenerOf(nonce, fd)
	var err error
	if d.stop, err = sys.NewEvent(); err == nil {
		d.socket, err = sys.ListenAbstract(name, maxPending)
	}
	if err != nil {
		sys.CloseAll(d.fd, d.stop)
		return nil, err
	}
	safego.Go("cuda memory", func() {
		defer sys.CloseAll(d.stop)
		defer d.stopListening()
		d.serve()
		d.stopListening()
		d.awaitHolders()
	}, nil)
	return d, nil
}

// close lets no process in any more. Holders stay, and are waited for behind.
func (d *listener) close() {
	d.closing.Do(func() { _ = sys.Signal(d.stop) }) // of an eventfd: cannot fail while it is open
	<-d.closed
}

// stopListening ends all that only pending connections need. Of the goroutine; idempotent.
func (d *listener) stopListening() {
	d.pending.Close()
	sys.CloseAll(d.socket, d.fd)
	select {
	case <-d.closed:
	default:
		close(d.closed)
	}
}

// serve ends when the listener is to be closed.
func (d *listener) serve() {
	for {
		pending := d.pending.All() // the listener's, which have not asked yet
		fds := append([]*sys.FD{d.stop, d.socket}, pending...)
		until := d.pending.Next()
		if until.IsZero() {
			until = time.Now().Add(time.Hour)
		}
		ready, err := sys.WaitReadable(d.withHolders(fds), until)
		if err != nil && !errors.Is(err, sys.ErrTimeout) {
			d.rest()
			continue
		}
		if slices.Contains(ready, 0) {
			return
		}
		d.forget(ready, len(fds))
		d.answer(pending, ready)
		if slices.Contains(ready, 1) {
			d.admit()
		}
	}
}

// answer serves the pending connections that have asked, and sends away those that take
// too long.
func (d *listener) answer(pending []*sys.FD, ready []int) {
	for _, i := range ready {
		if i < 2 || i-2 >= len(pending) {
			continue
		}
		conn := pending[i-2]
		d.pending.Remove(conn)
		if !d.hand(conn) {
			sys.CloseAll(conn)
		}
	}
	d.pending.Expire(time.Now())
}

func (d *listener) admit() {
	err := accept.Take(d.socket, func(conn *sys.FD) {
		if checkUser(conn) != nil {
			sys.CloseAll(conn)
			return
		}
		d.pending.Add(conn)
	})
	if err != nil { // as with no descriptor left, when the process stays in the queue
		d.rest()
	}
}

// rest keeps serve from asking without end for what it cannot get.
func (d *listener) rest() {
	if _, err := sys.WaitReadable([]*sys.FD{d.stop}, time.Now().Add(acceptRests)); err != nil && !errors.Is(err, sys.ErrTimeout) {
		time.Sleep(acceptRests)
	}
}

// hand lets a process in if it knows the nonce, and reports whether it stays.
func (d *listener) hand(conn *sys.FD) (stays bool) {
	ask := make([]byte, messageBytes)
	n, fds, err := sys.Receive(conn, ask, 1)
	sys.CloseAll(fds...)
	if err != nil || n != messageBytes || !bytes.Equal(ask, question(d.nonce)) {
		return false
	}
	if d.fd != nil {
		_ = sys.Send(conn, ask, d.fd) // the process may be gone
		return false
	}
	if d.hold(conn) != nil { // before it hears that it may
		return false
	}
	if sys.Send(conn, ask) != nil {
		d.undoHold() // it never hears that
		return false
	}
	return true
}

func question(nonce [nonceBytes]byte) []byte { return append([]byte(askMagic), nonce[:]...) }
