package cudaipc

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// door lets in processes of the same user that know the nonce: it hands them a
// descriptor, or else notes that they hold what the card names. One goroutine,
// which waits for nobody in particular.
type door struct {
	nonce    [nonceBytes]byte
	fd       *sys.FD // nil: visitors become holders
	listener *sys.FD
	stop     *sys.FD
	locked   chan struct{} // nobody comes in any more
	lock     sync.Once
	visitors []visitor

	mu      sync.Mutex // guards holders, which the goroutine alone changes
	holders []holder
}

// visitor is a connection that has not asked yet.
type visitor struct {
	conn  *sys.FD
	until time.Time
}

// The door holds so many visitors, each for so long; the oldest goes first.
const (
	maxVisitors  = 2 * 48
	visitorStays = 5 * time.Second
	doorRests    = 10 * time.Millisecond // when it cannot let anybody in
)

const (
	askMagic     = "MWGA"
	messageBytes = 4 + nonceBytes
)

// openDoor owns fd, also when it fails.
func openDoor(name string, nonce [nonceBytes]byte, fd *sys.FD) (*door, error) {
	d := &door{nonce: nonce, fd: fd, locked: make(chan struct{})}
	var err error
	if d.stop, err = sys.NewEvent(); err == nil {
		d.listener, err = sys.ListenAbstract(name, maxVisitors)
	}
	if err != nil {
		sys.CloseAll(d.fd, d.stop)
		return nil, err
	}
	safego.Go("cuda memory", func() {
		defer sys.CloseAll(d.stop)
		defer d.lockUp()
		d.serve()
		d.lockUp()
		d.seeOff()
	}, nil)
	return d, nil
}

// close lets nobody in any more. Holders stay, and are waited for behind.
func (d *door) close() {
	d.lock.Do(func() { _ = sys.Signal(d.stop) }) // of an eventfd: cannot fail while it is open
	<-d.locked
}

// lockUp ends all that only visitors need. Of the goroutine; idempotent.
func (d *door) lockUp() {
	for _, v := range d.visitors {
		sys.CloseAll(v.conn)
	}
	d.visitors = nil
	sys.CloseAll(d.listener, d.fd)
	select {
	case <-d.locked:
	default:
		close(d.locked)
	}
}

// serve ends when the door is to be closed.
func (d *door) serve() {
	for {
		fds := []*sys.FD{d.stop, d.listener}
		until := time.Now().Add(time.Hour)
		for _, v := range d.visitors {
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

// answer serves the visitors that have asked, and sends away those that take
// too long.
func (d *door) answer(ready []int) {
	now := time.Now()
	stay := d.visitors[:0]
	for i, v := range d.visitors {
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
	d.visitors = stay
}

func (d *door) admit() {
	conn, err := sys.Accept(d.listener)
	if err != nil {
		if !errors.Is(err, sys.ErrAgain) { // as with no descriptor left, when the visitor stays in the queue
			d.rest()
		}
		return
	}
	if checkUser(conn) != nil {
		sys.CloseAll(conn)
		return
	}
	if len(d.visitors) == maxVisitors {
		sys.CloseAll(d.visitors[0].conn)
		d.visitors = slices.Delete(d.visitors, 0, 1)
	}
	d.visitors = append(d.visitors, visitor{conn: conn, until: time.Now().Add(visitorStays)})
}

// rest keeps serve from asking without end for what it cannot get.
func (d *door) rest() {
	if _, err := sys.WaitReadable([]*sys.FD{d.stop}, time.Now().Add(doorRests)); err != nil && !errors.Is(err, sys.ErrTimeout) {
		time.Sleep(doorRests)
	}
}

// hand lets a visitor in if it knows the nonce, and reports whether it stays.
func (d *door) hand(conn *sys.FD) (stays bool) {
	ask := make([]byte, messageBytes)
	n, fds, err := sys.Receive(conn, ask, 1)
	sys.CloseAll(fds...)
	if err != nil || n != messageBytes || !bytes.Equal(ask, question(d.nonce)) {
		return false
	}
	if d.fd != nil {
		_ = sys.Send(conn, ask, d.fd) // the visitor may be gone
		return false
	}
	if d.hold(conn) != nil { // before it hears that it may
		return false
	}
	if sys.Send(conn, ask) != nil {
		d.letGo() // it never hears that
		return false
	}
	return true
}

func question(nonce [nonceBytes]byte) []byte { return append([]byte(askMagic), nonce[:]...) }
