package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// rendezvous is how an endpoint gets its sockets; everything in it is under mu. The side
// with the smaller token dials all of them, the other one waits until they have come.
// They may come before Connect is called. Then they are parked, but only those of one
// attempt of one peer: sockets of an older attempt are ends of sockets that the peer has
// closed.
type rendezvous struct {
	begun   bool
	over    bool
	peer    token
	arrived chan struct{} // a socket was parked, or stop
	stop    *sys.FD       // readable once the endpoint is retired
	stopped bool
	parked  [MaxNumSockets]parked
	from    token // the peer that has dialled last, and for which time
	attempt uint32
}

// parked is an authenticated connection that no Connect has taken yet.
type parked struct {
	fd      *sys.FD
	session *wire.Session
	join    join
}

func newToken() (t token) {
	_, _ = rand.Read(t[:]) // never fails, says crypto/rand
	return t
}

// busy reports whether a Connect runs.
func (m *rendezvous) busy() bool { return m.begun && !m.over }

// cancel ends a Connect that runs, and closes what no Connect has taken.
func (m *rendezvous) cancel() {
	m.stopped = true
	if m.busy() {
		_ = sys.Signal(m.stop)
		m.wake()
	}
	m.dropParked()
}

func (m *rendezvous) wake() {
	select {
	case m.arrived <- struct{}{}:
	default:
	}
}

func (m *rendezvous) dropParked() {
	for i := range m.parked {
		_ = m.parked[i].fd.Close()
		m.parked[i] = parked{}
	}
}

// Connect brings the endpoint to StateReady. A connection that breaks before both sides
// have agreed is made again until the deadline. It fails before that where no process
// listens, the peer refuses or breaks the protocol, or the endpoint is retired.
func (ep *endpoint) Connect(remote []byte, deadline time.Time) error {
	a, err := decodeAddress(remote)
	if err == nil && a.token == ep.token {
		err = errors.New("tcp: remote is the endpoint's own address")
	}
	if e := ep.beginRendezvous(a.token); e != nil {
		return e
	}
	if err == nil {
		err = ep.meetPeer(&a, deadline)
	}
	if err != nil {
		ep.io.Lock()
		ep.end(ending{retired: true})
		ep.unlockIO()
	}
	ep.mu.Lock()
	ep.rendezvous.over = true
	stop := ep.rendezvous.stop
	ep.mu.Unlock()
	return errors.Join(err, stop.Close())
}

// beginRendezvous notes that Connect runs. It runs once.
func (ep *endpoint) beginRendezvous(peer token) (err error) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	m := &ep.rendezvous
	if m.begun || !ep.is(transport.StateNew) {
		return ep.wrongState("Connect")
	}
	if m.stop, err = sys.NewEvent(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	m.begun, m.peer, m.arrived = true, peer, make(chan struct{}, 1)
	return nil
}

func (ep *endpoint) meetPeer(a *address, deadline time.Time) error {
	if dials(ep.token, a.token) {
		return ep.dial(a, deadline)
	}
	return ep.accept(deadline)
}

// offer takes a connection from the listener; false if no endpoint wants it.
func (ep *endpoint) offer(p parked) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	m := &ep.rendezvous
	if !ep.is(transport.StateNew) || !m.admits(&p.join) {
		return false
	}
	_ = m.parked[p.join.index].fd.Close() // in case the dialler says one twice
	m.parked[p.join.index] = p
	if m.begun {
		m.wake()
	}
	return true
}

// waitsFor reports whether a socket of this peer may still be wanted.
func (ep *endpoint) waitsFor(peer token) bool {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return !ep.rendezvous.begun || ep.rendezvous.peer == peer
}

// admits reports whether a socket is none of an attempt that is over. The first one of a
// newer attempt ends what is parked. So does one of another peer while the peer is not
// known yet.
func (m *rendezvous) admits(j *join) bool {
	switch {
	case m.begun && m.peer != j.from, m.from == j.from && j.attempt < m.attempt:
		return false
	case m.from != j.from || j.attempt != m.attempt:
		m.dropParked()
		m.from, m.attempt = j.from, j.attempt
	}
	return true
}

// accept waits until all sockets have come. When they break while they are welcomed the
// peer dials again: it has not heard that all of them are taken.
func (ep *endpoint) accept(deadline time.Time) error {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	var broken error
	for {
		set, stopped := ep.takeParked()
		switch {
		case stopped:
			return ep.wrongState("Connect")
		case set != nil:
			if broken = ep.welcome(set); broken == nil {
				return ep.install(set, set[0].join.sendDepth, set[0].join.recvDepth)
			}
			closeAll(set)
		}
		select {
		case <-ep.rendezvous.arrived:
		case <-timer.C:
			return errors.Join(fmt.Errorf("tcp: connect: the peer did not dial%s: %w", &ep.t.listener.refused, sys.ErrTimeout), broken)
		}
	}
}

// takeParked returns the sockets if all of the peer's last attempt are there and
// alive.
func (ep *endpoint) takeParked() (set []parked, stopped bool) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	m := &ep.rendezvous
	if m.stopped {
		return nil, true
	}
	first := &m.parked[0].join
	for i := range m.parked {
		p := &m.parked[i]
		if p.fd != nil && (p.join.from != m.peer || sys.Ended(p.fd)) {
			_ = p.fd.Close()
			*p = parked{}
		}
	}
	for i := range max(1, first.num) {
		p := &m.parked[i]
		if p.fd == nil || !p.join.sameAs(first) {
			return nil, false
		}
	}
	set = append(set, m.parked[:first.num]...)
	clear(m.parked[:first.num])
	m.dropParked() // of a peer that has dialled with more before
	return set, false
}

// welcome tells the dialler that all is ready.
func (ep *endpoint) welcome(set []parked) error {
	var extra [extraBytes]byte
	m := message{code: codeAccept, op: uint64(ep.spec.SendDepth), recv: uint64(ep.spec.RecvDepth)}
	m.encode(&extra)
	for i := range set {
		frame, err := set[i].session.Seal(nil, &wire.Head{Code: m.code, Extra: extra[:]})
		if err == nil {
			err = writeAll(set[i].fd, frame)
		}
		if err != nil {
			return fmt.Errorf("tcp: connect: %w", err)
		}
	}
	return nil
}

func closeAll(set []parked) {
	for i := range set {
		_ = set[i].fd.Close()
	}
}

// writeAll writes a short frame to a socket that has not been written much to, so that
// there is room for it.
func writeAll(fd *sys.FD, frame []byte) error {
	v := sys.NewVector(1)
	v.Add(frame)
	if _, err := sys.SendVector(fd, v); err != nil {
		return err
	}
	if v.Bytes() != 0 {
		return sys.ErrAgain
	}
	return nil
}

// install makes the sockets the endpoint's.
func (ep *endpoint) install(set []parked, peerSends, peerRecvs int) error {
	ep.io.Lock()
	defer ep.unlockIO()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !ep.is(transport.StateNew) {
		closeAll(set)
		return ep.wrongState("Connect")
	}
	for i := range set {
		c, err := ep.newConn(set[i].fd, set[i].session, i)
		if err != nil {
			closeAll(set[i:])
			ep.closeConns()
			return err
		}
		ep.conns = append(ep.conns, c)
	}
	ep.in.expect(peerSends)
	ep.out.maxCredit = uint64(peerRecvs)
	ep.state.Store(uint32(transport.StateReady))
	ep.hasWork.Store(true) // the peer has to hear of receives
	ep.t.forget(ep)
	return nil
}
