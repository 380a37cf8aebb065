package cudaipc

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
)

// door hands out a descriptor to processes of the same user that know the
// nonce. One goroutine, which waits for nobody in particular.
type door struct {
	nonce    [nonceBytes]byte
	fd       *sys.FD
	listener *sys.FD
	stop     *sys.FD
	ended    chan struct{}
	visitors []visitor
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
	d := &door{nonce: nonce, fd: fd, ended: make(chan struct{})}
	var err error
	if d.stop, err = sys.NewEvent(); err == nil {
		d.listener, err = sys.ListenAbstract(name, maxVisitors)
	}
	if err != nil {
		sys.CloseAll(d.fd, d.stop)
		return nil, err
	}
	safego.Go("cuda memory", func() { defer d.finish(); d.serve() }, nil)
	return d, nil
}

func (d *door) finish() {
	for _, v := range d.visitors {
		sys.CloseAll(v.conn)
	}
	sys.CloseAll(d.listener, d.fd)
	close(d.ended)
}

func (d *door) close() {
	_ = sys.Signal(d.stop) // cannot fail on an open eventfd
	<-d.ended
	sys.CloseAll(d.stop)
}

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
		ready, err := sys.WaitReadable(fds, until)
		if err != nil && !errors.Is(err, sys.ErrTimeout) {
			return
		}
		if slices.Contains(ready, 0) {
			return
		}
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
			d.hand(v.conn)
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
	if cred, err := sys.PeerCredentials(conn); err != nil || cred.UID != sys.Geteuid() {
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
	_, _ = sys.WaitReadable([]*sys.FD{d.stop}, time.Now().Add(doorRests))
}

// hand gives a visitor the descriptor if it knows the nonce.
func (d *door) hand(conn *sys.FD) {
	ask := make([]byte, messageBytes)
	n, fds, err := sys.Receive(conn, ask, 1)
	sys.CloseAll(fds...)
	if err == nil && n == messageBytes && bytes.Equal(ask, question(d.nonce)) {
		_ = sys.Send(conn, ask, d.fd) // the visitor may be gone
	}
}

func question(nonce [nonceBytes]byte) []byte { return append([]byte(askMagic), nonce[:]...) }

// fetch asks for a descriptor at a rank's door.
func fetch(c *card, until time.Time) (*sys.FD, error) {
	conn, err := knock(c.socket, until)
	if err != nil {
		return nil, err
	}
	defer sys.CloseAll(conn)
	if err := checkUser(conn); err != nil {
		return nil, err
	}
	if err := sys.Send(conn, question(c.nonce)); err != nil {
		return nil, err
	}
	if _, err := sys.WaitReadable([]*sys.FD{conn}, until); err != nil {
		return nil, fmt.Errorf("its process gave no answer: %w", err)
	}
	n, fds, err := sys.Receive(conn, make([]byte, messageBytes), 1)
	switch {
	case err != nil:
		return nil, err
	case n != messageBytes || len(fds) != 1:
		sys.CloseAll(fds...)
		return nil, errors.New("its process did not give the memory's descriptor")
	}
	return fds[0], nil
}

func checkUser(conn *sys.FD) error {
	cred, err := sys.PeerCredentials(conn)
	if err == nil && cred.UID != sys.Geteuid() {
		err = fmt.Errorf("its socket belongs to user id %d, this process to %d", cred.UID, sys.Geteuid())
	}
	return err
}

// knock connects, again and again while too many others do.
func knock(name string, until time.Time) (*sys.FD, error) {
	for {
		conn, err := sys.DialAbstract(name)
		if !errors.Is(err, sys.ErrAgain) {
			return conn, err
		}
		if !time.Now().Before(until) {
			return nil, fmt.Errorf("its process takes no connections: %w", sys.ErrTimeout)
		}
		time.Sleep(time.Millisecond)
	}
}
