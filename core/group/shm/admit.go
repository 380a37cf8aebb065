package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// pendingConn is an accepted connection that has not said yet which rank it is from.
type pendingConn struct {
	conn *sys.FD
	cred sys.Credentials
}

// step waits until something can be read and serves all of it: messages of
// known ranks, new connections, first messages of pending connections.
func (m *rendezvous) step() error {
	ready, err := m.waitForAny()
	if err != nil {
		return err
	}
	for _, p := range m.peers {
		if p != nil && ready[p.conn] {
			if err := m.receive(p); err != nil {
				return err
			}
		}
	}
	pending := m.pending
	m.pending = nil
	for i, v := range pending {
		if !ready[v.conn] {
			m.pending = append(m.pending, v)
		} else if err := m.welcome(v); err != nil {
			m.pending = append(m.pending, pending[i+1:]...)
			return err
		}
	}
	if ready[m.socket] {
		m.accept()
	}
	return nil
}

// waitForAny returns which descriptors can be read, or none after a while. It
// ends with sys.ErrTimeout at until, however much there is to read, and with
// transport.ErrClosed when cancelled.
func (m *rendezvous) waitForAny() (map[*sys.FD]bool, error) {
	if !time.Now().Before(m.until) {
		return nil, fmt.Errorf("rendezvous: %w", sys.ErrTimeout)
	}
	fds := []*sys.FD{m.cancel, m.listening()}
	for _, v := range m.pending {
		fds = append(fds, v.conn)
	}
	for _, p := range m.peers {
		if p != nil && !p.over {
			fds = append(fds, p.conn)
		}
	}
	indices, err := sys.WaitReadable(fds, m.nextLook())
	if errors.Is(err, sys.ErrTimeout) && time.Now().Before(m.until) {
		return nil, nil // time to look for the dead
	}
	if err != nil {
		return nil, err
	}
	ready := make(map[*sys.FD]bool, len(indices))
	for _, i := range indices {
		ready[fds[i]] = true
	}
	if ready[m.cancel] {
		return nil, fmt.Errorf("listener: %w", transport.ErrClosed)
	}
	return ready, nil
}

// acceptRests is how long the listener is left alone after accept has failed,
// for want of descriptors for instance: it stays readable meanwhile.
const acceptRests = 10 * time.Millisecond

// listening is the listener, nil while it is left alone.
func (m *rendezvous) listening() *sys.FD {
	if time.Now().Before(m.rests) {
		return nil
	}
	return m.socket
}

// accept takes connections that are there. Where none can be taken they stay in the queue:
// descriptors may become free before the deadline.
func (m *rendezvous) accept() {
	if err := accept.Take(m.socket, m.addPending); err != nil {
		m.refused, m.rests = fmt.Errorf("here: %w", err), time.Now().Add(acceptRests)
	}
}

// addPending turns foreign connections (another user, another construction) away: they do not
// disturb.
func (m *rendezvous) addPending(conn *sys.FD) {
	cred, err := m.checkUser(conn)
	if err != nil {
		m.refused = err
		sys.CloseAll(conn)
		return
	}
	m.pending = append(m.pending, pendingConn{conn, cred})
}

// welcome reads a pending connection's first message. A higher rank's hello is answered;
// any other connection is turned away, which is no error.
func (m *rendezvous) welcome(v pendingConn) error {
	msg, fds, err := receive(v.conn)
	if err == nil {
		err = m.checkPending(msg, len(fds))
	} else if m.isShort(msg, err) {
		// It is told why, as every rank is that is there.
		m.peers[msg.rank] = &participant{contact: &contact{rank: msg.rank, conn: v.conn}}
		return fmt.Errorf("rank %d: its memory: %w", msg.rank, err)
	}
	if err != nil {
		m.refused = fmt.Errorf("process %d: %w", v.cred.PID, err)
		sys.CloseAll(append(fds, v.conn)...)
		return nil
	}
	p, err := m.admit(msg.rank, v.conn, v.cred)
	if err != nil {
		sys.CloseAll(fds...)
		return err
	}
	if err := m.adopt(p, msg, fds); err != nil {
		return err
	}
	return m.sendHello(p)
}

func (m *rendezvous) checkPending(msg message, numFDs int) error {
	if msg.rank <= m.self || !m.has(msg.rank) || m.peers[msg.rank] != nil {
		return fmt.Errorf("it says it is rank %d, which is not awaited", msg.rank)
	}
	return m.expect(msg, msg.rank, kindHello, numFDs, m.helloFDs(msg.rank))
}

// isShort reports whether this process could not take the descriptors of a rank
// that is awaited: they will not come again, so the rendezvous has failed.
func (m *rendezvous) isShort(msg message, err error) bool {
	return isUndelivered(err) && m.checkPending(msg, m.helloFDs(msg.rank)) == nil
}

func (m *rendezvous) dropPending() {
	for _, v := range m.pending {
		sys.CloseAll(v.conn)
	}
	m.pending = nil
}
