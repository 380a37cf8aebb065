package shm

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// meeting is one run of Connect, all on the caller's goroutine:
//
//  1. dial every lower rank and send it this rank's descriptors,
//  2. take the answer of each lower rank, and answer each higher rank, as
//     they come,
//  3. tell all "ready" and go on until all have said so.
//
// It waits for nobody in particular, so it cannot deadlock, and it hears at
// any time that a rank has given up or ended. Every wait ends at until or by
// cancel.
type meeting struct {
	self      int
	infos     []Info
	until     time.Time
	cancel    *sys.FD
	socket    *sys.FD
	own       *member
	membersFD *sys.FD
	members   *region
	peers     []*member // by rank; nil for self and until rank is greeted or heard
	visitors  []visitor
	refused   error // why the last stranger was turned away
}

func (m *meeting) run() error {
	for r := range m.self {
		if err := m.greet(r); err != nil {
			return err
		}
	}
	here := func(p *member) bool { return p != nil && p.base != nil }
	if err := m.untilAll(here, "did not come"); err != nil {
		return err
	}
	if err := m.mapMembers(); err != nil {
		return err
	}
	if err := m.tellReady(); err != nil {
		return err
	}
	return m.untilAll(func(p *member) bool { return p.ready }, "came but did not finish connecting")
}

// untilAll serves everybody until every peer satisfies done. complaint says
// what a rank that does not has failed to do.
func (m *meeting) untilAll(done func(*member) bool, complaint string) error {
	for {
		var late []string
		for r, p := range m.peers {
			if r != m.self && !done(p) {
				late = append(late, fmt.Sprintf("rank %d", r))
			}
		}
		if late == nil {
			return nil
		}
		err := m.step()
		if errors.Is(err, sys.ErrTimeout) {
			err = fmt.Errorf("%s %s before the deadline: %w", strings.Join(late, ", "), complaint, err)
			if m.refused != nil {
				err = fmt.Errorf("%w (a connection was refused: %w)", err, m.refused)
			}
		}
		if err != nil {
			return err
		}
	}
}

// tellReady says that this rank has everything from everybody.
func (m *meeting) tellReady() error {
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		if err := m.say(p, kindReady, ""); err != nil {
			if why := m.hear(p); why != nil && !errors.Is(why, sys.ErrAgain) {
				return why // it said why it closed the connection
			}
			return err
		}
	}
	return nil
}

func (m *meeting) mapMembers() (err error) {
	if m.members, err = mapMembers(m.membersFD, false); err != nil {
		return fmt.Errorf("rank 0: members page: %w", err)
	}
	sys.Prefault(m.members.data)
	return nil
}

// greet dials rank r and sends it this rank's hello.
func (m *meeting) greet(r int) error {
	conn, err := m.dial(r)
	if err != nil {
		return err
	}
	p := &member{rank: r, conn: conn}
	m.peers[r] = p
	cred, err := m.checkUser(conn)
	if err != nil {
		return fmt.Errorf("rank %d: %w", r, err)
	}
	p.watch = findLiveness(conn, cred)
	return m.sayHello(p)
}

// dial connects to rank r, again and again while its backlog is full.
func (m *meeting) dial(r int) (*sys.FD, error) {
	for {
		conn, err := sys.DialAbstract(m.infos[r].Socket)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, sys.ErrNoListener):
			return nil, fmt.Errorf("rank %d does not listen: its process (%d) has ended or given up, or it is in another network namespace or host: %w",
				r, m.infos[r].PID, err)
		case !errors.Is(err, sys.ErrAgain):
			return nil, fmt.Errorf("rank %d: %w", r, err)
		case !time.Now().Before(m.until):
			return nil, fmt.Errorf("rank %d did not come before the deadline: %w", r, sys.ErrTimeout)
		}
		if err := m.pause(time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// pause sleeps for d; it ends with transport.ErrClosed when cancelled.
func (m *meeting) pause(d time.Duration) error {
	_, err := sys.WaitReadable([]*sys.FD{m.cancel}, time.Now().Add(d))
	switch {
	case err == nil:
		return fmt.Errorf("listener: %w", transport.ErrClosed)
	case errors.Is(err, sys.ErrTimeout):
		return nil
	}
	return err
}

// checkUser refuses processes of other users.
func (m *meeting) checkUser(conn *sys.FD) (sys.Credentials, error) {
	cred, err := sys.PeerCredentials(conn)
	if err == nil && cred.UID != sys.Geteuid() {
		err = fmt.Errorf("process %d belongs to user id %d, this process to %d", cred.PID, cred.UID, sys.Geteuid())
	}
	return cred, err
}

// sayHello sends this rank's descriptors; rank 0 adds the members page.
func (m *meeting) sayHello(p *member) error {
	fds := []*sys.FD{m.own.memory}
	if m.self == 0 {
		fds = append(fds, m.membersFD)
	}
	return m.say(p, kindHello, "", fds...)
}

func (m *meeting) say(p *member, k kind, text string, fds ...*sys.FD) error {
	msg := message{
		kind: k, rank: m.self, to: m.infos[p.rank].Nonce, from: m.infos[m.self].Nonce, text: text,
	}
	if p.watch.kind == byConnection {
		msg.flags |= flagKeep
	}
	if err := sys.Send(p.conn, msg.marshal(), fds...); err != nil {
		return fmt.Errorf("rank %d: %w", p.rank, err)
	}
	return nil
}

// adopt takes the peer's memory.
func (m *meeting) adopt(p *member, msg message, memory *sys.FD) error {
	p.memory = memory
	p.keep = msg.flags&flagKeep != 0 || p.watch.kind == byConnection
	if err := p.mapBase(m.infos[p.rank].ControlBytes); err != nil {
		return fmt.Errorf("rank %d: %w", p.rank, err)
	}
	return nil
}

// hear takes the message of a known rank that is there.
func (m *meeting) hear(p *member) error {
	msg, fds, err := receive(p.conn)
	if p.ready && errors.Is(err, errEnded) {
		p.over = true // it has finished and closed already
		return nil
	}
	if err == nil {
		err = m.take(p, msg, fds)
	}
	if err != nil {
		sys.CloseAll(fds...)
		return fmt.Errorf("rank %d: %w", p.rank, err)
	}
	return nil
}

// take does what a message says. It owns fds unless it fails.
func (m *meeting) take(p *member, msg message, fds []*sys.FD) error {
	switch {
	case msg.kind == kindBye && p.ready:
		p.over, p.left = true, true
		return nil
	case msg.kind == kindReady && p.base != nil && !p.ready:
		p.ready = true
		return m.expect(msg, p.rank, kindReady, len(fds), 0)
	}
	numFDs := 1
	if p.rank == 0 {
		numFDs = 2
	}
	if err := m.expect(msg, p.rank, kindHello, len(fds), numFDs); err != nil {
		return err
	}
	if p.base != nil {
		return errors.New("second hello")
	}
	if p.rank == 0 {
		m.membersFD = fds[1]
	}
	return m.adopt(p, msg, fds[0])
}

// expect checks a message against its sender and the state of the meeting.
func (m *meeting) expect(msg message, rank int, k kind, gotFDs, wantFDs int) error {
	switch {
	case msg.rank != rank || msg.from != m.infos[rank].Nonce || msg.to != m.infos[m.self].Nonce:
		return errors.New("message with another rank or nonce: metadata of another construction?")
	case msg.kind == kindAbort:
		return fmt.Errorf("gave up connecting: %s", msg.text)
	case msg.kind != k || gotFDs != wantFDs:
		return fmt.Errorf("message of kind %d with %d descriptors, expected %d with %d", msg.kind, gotFDs, k, wantFDs)
	}
	return nil
}

var errEnded = errors.New("closed the connection while connecting")

// receive takes the message that is there. Where the sender closed with
// something unread, the kernel reports that first and the message after it.
func receive(conn *sys.FD) (message, []*sys.FD, error) {
	buf := make([]byte, messageBytes+maxTextBytes)
	n, fds, err := sys.Receive(conn, buf, 2)
	if errors.Is(err, syscall.ECONNRESET) {
		n, fds, err = sys.Receive(conn, buf, 2)
	}
	switch {
	case errors.Is(err, syscall.ECONNRESET), err == nil && n == 0:
		err = errEnded
	case err == nil:
		var msg message
		if msg, err = parseMessage(buf[:n]); err == nil {
			return msg, fds, nil
		}
	}
	sys.CloseAll(fds...)
	return message{}, nil, err
}

// abandon tells everybody why, as far as they have come, and gives up.
func (m *meeting) abandon(reason error) {
	for _, p := range m.peers {
		if p != nil {
			if p.conn != nil && p.conn.Raw() >= 0 {
				_ = m.say(p, kindAbort, reason.Error()) // best effort
			}
			p.drop()
		}
	}
	if m.members != nil {
		m.members.Release()
	}
	sys.CloseAll(m.membersFD)
}
