package shm

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// visitor is an accepted connection that has not said yet who it is.
type visitor struct {
	conn *sys.FD
	cred sys.Credentials
}

// step waits until something can be read and serves all of it: messages of
// known ranks, new connections, first messages of visitors.
func (m *meeting) step() error {
	ready, err := m.waitForAny()
	if err != nil {
		return err
	}
	for _, p := range m.peers {
		if p != nil && ready[p.conn] {
			if err := m.hear(p); err != nil {
				return err
			}
		}
	}
	visitors := m.visitors
	m.visitors = nil
	for i, v := range visitors {
		if !ready[v.conn] {
			m.visitors = append(m.visitors, v)
		} else if err := m.welcome(v); err != nil {
			m.visitors = append(m.visitors, visitors[i+1:]...)
			return err
		}
	}
	if ready[m.socket] {
		m.accept()
	}
	return nil
}

// waitForAny returns which descriptors can be read, or none after a while. It
// ends with sys.ErrTimeout at until and with transport.ErrClosed when
// cancelled.
func (m *meeting) waitForAny() (map[*sys.FD]bool, error) {
	fds := []*sys.FD{m.cancel, m.socket}
	for _, v := range m.visitors {
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

// accept takes all connections that are there. Strangers (another user,
// another construction) are turned away and do not disturb.
func (m *meeting) accept() {
	for {
		conn, err := sys.Accept(m.socket)
		if err != nil {
			if !errors.Is(err, sys.ErrAgain) {
				m.refused = err
			}
			return
		}
		cred, err := m.checkUser(conn)
		if err != nil {
			m.refused = err
			sys.CloseAll(conn)
			continue
		}
		m.visitors = append(m.visitors, visitor{conn, cred})
	}
}

// welcome reads a visitor's first message. A higher rank's hello is answered;
// anybody else is turned away, which is no error.
func (m *meeting) welcome(v visitor) error {
	msg, fds, err := receive(v.conn)
	if err == nil {
		err = m.checkVisitor(msg, len(fds))
	}
	if err != nil {
		m.refused = fmt.Errorf("process %d: %w", v.cred.PID, err)
		sys.CloseAll(append(fds, v.conn)...)
		return nil
	}
	p := m.admit(msg.rank, v.conn, v.cred)
	if err := m.adopt(p, msg, fds); err != nil {
		return err
	}
	return m.sayHello(p)
}

func (m *meeting) checkVisitor(msg message, numFDs int) error {
	if msg.rank <= m.self || !m.has(msg.rank) || m.peers[msg.rank] != nil {
		return fmt.Errorf("it says it is rank %d, which is not awaited", msg.rank)
	}
	return m.expect(msg, msg.rank, kindHello, numFDs, m.helloFDs(msg.rank))
}

func (m *meeting) dismissVisitors() {
	for _, v := range m.visitors {
		sys.CloseAll(v.conn)
	}
	m.visitors = nil
}
