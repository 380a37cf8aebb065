package cudaipc

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// ErrStopped is what a wait ends with that was told to end.
var ErrStopped = errors.New("the wait was ended")

// Wait bounds a wait for another rank.
type Wait struct {
	Until time.Time
	Stop  <-chan struct{} // ends it when it is closed; may be nil
}

// How often a wait looks whether it is to end.
const lookEvery = 5 * time.Millisecond

// over is why a wait is to end now; past the deadline that is timedOut.
func (w Wait) over(timedOut error) error {
	select {
	case <-w.Stop:
		return ErrStopped
	default:
	}
	if !time.Now().Before(w.Until) {
		return timedOut
	}
	return nil
}

// visit asks at a rank's listener. The connection is the caller's then, and so is
// the descriptor, if the memory is shared by one.
func visit(c *memDesc, w Wait) (conn, fd *sys.FD, err error) {
	if conn, err = knock(c.socket, w); err != nil {
		return nil, nil, err
	}
	if err = checkUser(conn); err == nil {
		err = sys.Send(conn, question(c.nonce))
	}
	if err == nil {
		fd, err = answered(c, conn, w)
	}
	if err != nil {
		leave(conn)
		return nil, nil, err
	}
	return conn, fd, nil
}

// leave tells the owner that nothing is open by this visit, whatever it has
// answered, or will: a late one reads the question first.
func leave(conn *sys.FD) {
	_ = sys.Send(conn, shutdownNotice) // the owner may be gone
	sys.CloseAll(conn)
}

// answered waits for the answer.
func answered(c *memDesc, conn *sys.FD, w Wait) (*sys.FD, error) {
	for {
		_, err := sys.WaitReadable([]*sys.FD{conn}, time.Now().Add(lookEvery))
		if err == nil {
			break
		}
		if !errors.Is(err, sys.ErrTimeout) {
			return nil, err
		}
		if err := w.over(fmt.Errorf("its process gave no answer: %w", sys.ErrTimeout)); err != nil {
			return nil, err
		}
	}
	n, fds, err := sys.Receive(conn, make([]byte, messageBytes), 1)
	switch {
	case err != nil:
		return nil, err
	case n != messageBytes || (c.ways&byFD != 0) != (len(fds) == 1):
		sys.CloseAll(fds...)
		return nil, errors.New("its process did not give the memory")
	case len(fds) == 1:
		return fds[0], nil
	}
	return nil, nil
}

func checkUser(conn *sys.FD) error {
	cred, err := sys.PeerCredentials(conn)
	if err == nil {
		err = sys.CheckUser("its socket", cred.UID)
	}
	return err
}

// knock connects, again and again while too many others do.
func knock(name string, w Wait) (*sys.FD, error) {
	for {
		conn, err := sys.DialAbstract(name)
		if !errors.Is(err, sys.ErrAgain) {
			return conn, err
		}
		if err := w.over(fmt.Errorf("its process takes no connections: %w", sys.ErrTimeout)); err != nil {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}
