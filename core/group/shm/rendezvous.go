package shm

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// rendezvous is one run of Connect, all on the caller's goroutine:
//
//  1. dial every lower rank and send it this rank's descriptors,
//  2. take the answer of each lower rank, and answer each higher rank, as
//     they come,
//  3. tell all "ready" and go on until all have said so.
//
// It waits for no rank in particular, so it cannot deadlock, and it hears at any time
// that a rank has given up or ended. Every wait ends at until or by cancel.
type rendezvous struct {
	*participants
	self      int
	first     uint64 // what a fresh members word gets
	until     time.Time
	cancel    *sys.FD
	socket    *sys.FD
	memory    *sys.FD                   // this rank's
	membersFD *sys.FD                   // own from the start or from the source; the rendezvous's
	survivor  bool                      // this rank has the members page already
	anyPage   bool                      // and takes another one
	moved     bool                      // it has: membersFD is not what it came with
	known     [rankset.MaxRanks]*member // the peers of earlier rendezvous
	peers     []*participant            // by rank; nil for self and until rank is greeted or heard
	pending   []pendingConn
	refused   error     // why the last connection was turned away
	rests     time.Time // until then the listener is left alone
}

// participant is a peer in a rendezvous.
type participant struct {
	*contact
	member *member // its memory; nil when it is known from before
	here   bool    // its hello has come
	ready  bool    // it has said that it has everything
	over   bool    // its connection has ended, after ready
}

// hold runs the rendezvous.
func (m *rendezvous) hold() error {
	defer m.dropPending()
	return m.run()
}

func (m *rendezvous) run() error {
	for r := range m.self {
		if m.has(r) {
			if err := m.greet(r); err != nil {
				return err
			}
		}
	}
	if err := m.untilAll(func(p *participant) bool { return p != nil && p.here }, "did not come"); err != nil {
		return err
	}
	if err := m.sendReady(); err != nil {
		return err
	}
	return m.untilAll(func(p *participant) bool { return p.ready }, "came but did not finish connecting")
}

// untilAll serves every connection until every peer satisfies done. complaint says what a
// rank that does not has failed to do.
func (m *rendezvous) untilAll(done func(*participant) bool, complaint string) error {
	for {
		var missing []string
		for r, p := range m.peers {
			if r != m.self && m.has(r) && !done(p) {
				missing = append(missing, fmt.Sprintf("rank %d", r))
			}
		}
		if missing == nil {
			return nil
		}
		err := m.findDead()
		if err == nil {
			err = m.step()
		}
		if errors.Is(err, sys.ErrTimeout) {
			err = fmt.Errorf("%s %s before the deadline: %w", strings.Join(missing, ", "), complaint, err)
			if m.refused != nil {
				err = fmt.Errorf("%w (a connection was refused: %w)", err, m.refused)
			}
		}
		if err != nil {
			return err
		}
	}
}

// findDead finds a rank that cannot come because its process, known from
// before, has ended.
func (m *rendezvous) findDead() error {
	for r, old := range m.known {
		if m.has(r) && m.peers[r] == nil && m.knows(r) && old.Lost() != nil {
			return fmt.Errorf("cannot come: %w", old.Lost())
		}
	}
	return nil
}

// knows reports whether a rank comes with memory that is mapped already.
func (m *rendezvous) knows(r int) bool {
	return m.known[r] != nil && m.known[r].identity == m.infos[r].Identity
}

// nextLook is when to look for the dead again: the domain's watcher, not this
// rendezvous, notices those that have not connected.
func (m *rendezvous) nextLook() time.Time {
	now, next := time.Now(), m.until
	if soon := now.Add(50 * time.Millisecond); m.survivor && soon.Before(next) {
		next = soon
	}
	if m.rests.After(now) && m.rests.Before(next) {
		next = m.rests // the listener is looked at again
	}
	return next
}

// sendReady says that this rank has everything from every rank.
func (m *rendezvous) sendReady() error {
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		if err := m.send(p, kindReady, ""); err != nil {
			return m.why(p, err)
		}
	}
	return nil
}

// why explains a failure to send: a peer that has given up said so before it
// closed the connection, perhaps after its hello.
func (m *rendezvous) why(p *participant, err error) error {
	for range 2 {
		if err := m.receive(p); err != nil && !errors.Is(err, sys.ErrAgain) {
			return err
		}
	}
	return err
}

// greet dials rank r and sends it this rank's hello.
func (m *rendezvous) greet(r int) error {
	conn, err := m.dial(r)
	if err != nil {
		return err
	}
	cred, err := m.checkUser(conn)
	if err != nil {
		sys.CloseAll(conn)
		return fmt.Errorf("rank %d: %w", r, err)
	}
	p, err := m.admit(r, conn, cred)
	if err != nil {
		return err
	}
	return m.sendHello(p)
}

// admit files the rank at the other end of a connection, which it owns.
func (m *rendezvous) admit(r int, conn *sys.FD, cred sys.Credentials) (*participant, error) {
	l, err := findLiveness(conn, cred)
	p := &participant{contact: &contact{rank: r, conn: conn, liveness: l}}
	m.peers[r] = p // on an error, too: it is told why
	if err != nil {
		return nil, fmt.Errorf("rank %d: watching its process: %w", r, err)
	}
	return p, nil
}

// dial connects to rank r, again and again while its backlog is full.
func (m *rendezvous) dial(r int) (*sys.FD, error) {
	for {
		conn, err := sys.DialAbstract(m.infos[r].Socket)
		switch {
		case err == nil:
			return conn, nil
		case errors.Is(err, sys.ErrNoListener):
			return nil, fmt.Errorf("rank %d does not listen any more: its process (%d) has ended, or has given up (what it says itself tells why), or is in another network namespace: %w",
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
func (m *rendezvous) pause(d time.Duration) error {
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
func (m *rendezvous) checkUser(conn *sys.FD) (sys.Credentials, error) {
	cred, err := sys.PeerCredentials(conn)
	if err == nil {
		err = sys.CheckUser(fmt.Sprintf("process %d", cred.PID), cred.UID)
	}
	return cred, err
}

// sendHello sends this rank's descriptors; the source adds the members page.
func (m *rendezvous) sendHello(p *participant) error {
	fds := []*sys.FD{m.memory, m.membersFD}[:m.helloFDs(m.self)]
	if err := m.send(p, kindHello, "", fds...); err != nil {
		return m.why(p, err)
	}
	return nil
}

// helloFDs is how many descriptors come with a rank's hello.
func (m *rendezvous) helloFDs(rank int) int {
	if rank == m.source() {
		return 2
	}
	return 1
}

func (m *rendezvous) send(p *participant, k kind, text string, fds ...*sys.FD) error {
	msg := message{
		kind: k, rank: m.self, to: m.infos[p.rank].Nonce, from: m.infos[m.self].Nonce, text: text,
	}
	if p.kind == byConnection {
		msg.flags |= flagKeep
	}
	if err := sys.Send(p.conn, msg.marshal(), fds...); err != nil {
		return fmt.Errorf("rank %d: %w", p.rank, err)
	}
	return nil
}

// adopt takes the descriptors of a peer's hello.
func (m *rendezvous) adopt(p *participant, msg message, fds []*sys.FD) (err error) {
	p.here, p.keep = true, msg.flags&flagKeep != 0 || p.kind == byConnection
	info := &m.infos[p.rank]
	if m.knows(p.rank) {
		sys.CloseAll(fds[0]) // it is mapped already
	} else {
		p.member = &member{rank: p.rank, identity: info.Identity, memory: fds[0]}
		p.member.contact.Store(p.contact)
		if err = p.member.mapBase(info.ControlBytes); err == nil {
			p.member.dropFile(p.rank == m.next(m.self))
		}
	}
	if err == nil && len(fds) > 1 {
		err = m.adoptMembers(fds[1])
	}
	if err != nil {
		sys.CloseAll(fds...)
		return fmt.Errorf("rank %d: %w", p.rank, err)
	}
	return nil
}

// adoptMembers takes the source's members page. A survivor compares it with the
// one that it has.
func (m *rendezvous) adoptMembers(fd *sys.FD) error {
	if !m.survivor {
		m.membersFD = fd
		return nil
	}
	same, err := sys.SameFile(fd, m.membersFD)
	if err == nil && !same && m.anyPage {
		sys.CloseAll(m.membersFD)
		m.membersFD, m.moved = fd, true
		return nil
	}
	sys.CloseAll(fd)
	if err == nil && !same {
		err = fmt.Errorf("%w: members page is another group's", transport.ErrMismatch)
	}
	return err
}

// receive takes the message of a known rank that is there.
func (m *rendezvous) receive(p *participant) error {
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
func (m *rendezvous) take(p *participant, msg message, fds []*sys.FD) error {
	switch {
	case msg.kind == kindShutdown && p.ready:
		p.over, p.left = true, true
		return nil
	case msg.kind == kindReady && p.here && !p.ready:
		p.ready = true
		return m.expect(msg, p.rank, kindReady, len(fds), 0)
	}
	if err := m.expect(msg, p.rank, kindHello, len(fds), m.helloFDs(p.rank)); err != nil {
		return err
	}
	if p.here {
		return errors.New("second hello")
	}
	return m.adopt(p, msg, fds)
}

// expect checks a message against its sender and the state of the rendezvous.
func (m *rendezvous) expect(msg message, rank int, k kind, gotFDs, wantFDs int) error {
	switch {
	case msg.rank != rank || msg.from != m.infos[rank].Nonce || msg.to != m.infos[m.self].Nonce:
		return errors.New("message with another rank or nonce: metadata of another construction?")
	case msg.kind == kindAbort:
		return domain.GaveUp([]byte(msg.text))
	case msg.kind != k || gotFDs != wantFDs:
		return fmt.Errorf("message of kind %d with %d descriptors, expected %d with %d", msg.kind, gotFDs, k, wantFDs)
	}
	return nil
}

// settle makes the rendezvous's result last: every peer is watched, and connections are
// closed if no peer's liveness depends on them.
func (m *rendezvous) settle(ring func()) error {
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		if err := p.watch(ring); err != nil {
			return err
		}
		if !p.keep {
			sys.CloseAll(p.conn)
		}
	}
	return nil
}

// abandon tells every rank why, as far as they have come, and gives up what the
// rendezvous has gathered.
func (m *rendezvous) abandon(reason error) {
	for _, p := range m.peers {
		if p == nil {
			continue
		}
		if p.conn.Raw() >= 0 {
			_ = m.send(p, kindAbort, string(domain.PackReason(reason))) // best effort
		}
		p.drop(m.self)
	}
	sys.CloseAll(m.membersFD)
}

// drop forgets a peer that the domain has not taken.
func (p *participant) drop(self int) {
	p.end(self)
	if p.member != nil {
		p.member.shut()
	}
}
