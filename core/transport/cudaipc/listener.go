package cudaipc

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
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
	pending []pendingConn

	mu      sync.Mutex // guards holders, which the goroutine alone changes
	holders []holder
}

// pendingConn is a connection that has not asked yet.
type pendingConn struct {
	conn  *sys.FD
	until time.Time
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

// openListener owns fd, also when it fails.
func openListener(name string, nonce [nonceBytes]byte, fd *sys.FD) (*listener, error) {
	d := &listener{nonce: nonce, fd: fd, closed: make(chan struct{})}
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
	for _, v := range d.pending {
		sys.CloseAll(v.conn)
	}
	d.pending = nil
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
		fds := []*sys.FD{d.stop, d.socket}
		until := time.Now().Add(time.Hour)
		for _, v := range d.pending {
			fds = append(fds, v.conn)
			if v.until.Before(until) {
				until = v.until
			}
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
		d.answer(ready)
		if slices.Contains(ready, 1) {
			d.admit()
		}
	}
}

// answer serves the pending connections that have asked, and sends away those that take
// too long.
func (d *listener) answer(ready []int) {
	now := time.Now()
	stay := d.pending[:0]
	for i, v := range d.pending {
		switch {
		case slices.Contains(ready, i+2):
			if d.hand(v.conn) {
				continue
			}
		case now.Before(v.until):
			stay = append(stay, v)
			continue
		}
		sys.CloseAll(v.conn)
	}
	d.pending = stay
}

func (d *listener) admit() {
	conn, err := sys.Accept(d.socket)
	if err != nil {
		if !errors.Is(err, sys.ErrAgain) { // as with no descriptor left, when the process stays in the queue
			d.rest()
		}
		return
	}
	if checkUser(conn) != nil {
		sys.CloseAll(conn)
		return
	}
	if len(d.pending) == maxPending {
		sys.CloseAll(d.pending[0].conn)
		d.pending = slices.Delete(d.pending, 0, 1)
	}
	d.pending = append(d.pending, pendingConn{conn: conn, until: time.Now().Add(pendingTimeout)})
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
