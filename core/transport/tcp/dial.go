package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// dialer makes the sockets of one endpoint.
type dialer struct {
	ep       *endpoint
	peer     *address
	num      int
	attempt  uint32
	deadline time.Time
	stop     *sys.FD
}

const (
	firstPause   = 5 * time.Millisecond
	longestPause = 200 * time.Millisecond
)

var (
	errStopped  = errors.New("tcp: connect: the endpoint was retired")
	errNotTaken = errors.New("the connection ended before the peer took it")
)

// dial connects all sockets and waits until the peer has taken them. It begins again when
// one ends before that. The peer may have too many pending connections, or the network
// may have broken it: neither says anything of the peer's endpoint. If that endpoint is
// gone, the next attempt is refused.
func (ep *endpoint) dial(a *address, deadline time.Time) (err error) {
	d := &dialer{
		ep: ep, peer: a, deadline: deadline, stop: ep.rendezvous.stop,
		num: min(a.numSockets, ep.t.config.NumSockets),
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		set, sends, recvs, e := d.sockets()
		if e == nil {
			return ep.install(set, sends, recvs)
		}
		if !errors.Is(e, errNotTaken) {
			return errors.Join(e, err)
		}
		err = e
		if e := d.sleep(pause); e != nil {
			return errors.Join(e, err)
		}
	}
}

// sockets makes one attempt to get all of them taken. It closes them if that
// fails.
func (d *dialer) sockets() (set []parked, sends, recvs int, err error) {
	d.attempt++
	for i := 0; i < d.num && err == nil; i++ {
		var p parked
		if p, err = d.socket(i); err == nil {
			set = append(set, p)
		}
	}
	if err == nil {
		if sends, recvs, err = d.awaitAccepts(set); err != nil {
			err = fmt.Errorf("tcp: connect: %w", err)
		}
	}
	if err != nil {
		closeAll(set)
	}
	return set, sends, recvs, err
}

// socket tries the peer's addresses in turn until one works. Sockets begin
// with different ones, so that they use all of its interfaces.
func (d *dialer) socket(index int) (parked, error) {
	pause, refused := firstPause, 0
	for try := index; ; try++ {
		p, err := d.try(d.peer.addrs[try%len(d.peer.addrs)], index)
		if err == nil {
			return p, nil
		}
		if refused++; !errors.Is(err, sys.ErrNoListener) {
			refused = 0
		}
		err = fmt.Errorf("tcp: connect: %w", err)
		if final(err) || refused >= len(d.peer.addrs) {
			return p, err
		}
		if e := d.sleep(pause); e != nil {
			return p, errors.Join(e, err)
		}
		pause = min(2*pause, longestPause)
	}
}

// final reports whether another attempt would end in the same way: the peer
// has the key, and says no.
func final(err error) bool {
	var refused *wire.RefusedError
	return errors.Is(err, errStopped) || errors.As(err, &refused) && refused.Reason != wire.ErrBusy
}

func (d *dialer) sleep(pause time.Duration) error {
	until := time.Now().Add(pause)
	if until.After(d.deadline) {
		return sys.ErrTimeout
	}
	err := d.wait(nil, false, until)
	if errors.Is(err, sys.ErrTimeout) {
		return nil
	}
	return err
}

// wait waits for a socket until a time, or until the endpoint is retired.
func (d *dialer) wait(fd *sys.FD, write bool, until time.Time) error {
	stopped, err := sys.WaitSocket(fd, write, d.stop, until)
	if stopped {
		return errStopped
	}
	return err
}

// try makes one attempt at one address.
func (d *dialer) try(addr netip.AddrPort, index int) (p parked, err error) {
	t := d.ep.t
	until := time.Now().Add(t.config.HandshakeTimeout)
	if until.After(d.deadline) {
		until = d.deadline
	}
	fd, err := sys.DialTCP(addr, t.options())
	if err == sys.ErrInProgress {
		if err = d.wait(fd, true, until); err == nil {
			err = sys.FinishDial(fd)
		}
	}
	if err == nil {
		p.join = join{
			from: d.ep.token, to: d.peer.token, index: index, num: d.num,
			sendDepth: d.ep.spec.SendDepth, recvDepth: d.ep.spec.RecvDepth, attempt: d.attempt,
		}
		p.fd = fd
		if p.session, err = d.shake(&p, until); errors.Is(err, wire.ErrProtection) {
			err = fmt.Errorf("%w: protection is %v here: %w", transport.ErrMismatch, t.wire.Protection, err)
		}
	}
	if err != nil {
		return parked{}, errors.Join(fmt.Errorf("%v: %w", addr, err), fd.Close())
	}
	return p, nil
}

// shake does the dialling side of the handshake.
func (d *dialer) shake(p *parked, until time.Time) (*wire.Session, error) {
	config := d.ep.t.wire
	config.Blob = p.join.encode()
	h, err := wire.NewHandshake(wire.RoleClient, config)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	if err := writeAll(p.fd, h.Start()); err != nil {
		return nil, err
	}
	buf := make([]byte, 2048)
	for !h.Done() {
		in := buf[:min(h.Need(), len(buf))]
		if err := d.readFull(p.fd, in, until); err != nil {
			return nil, err
		}
		_, out, err := h.Step(in)
		if err != nil {
			return nil, err
		}
		if out != nil {
			if err := writeAll(p.fd, out); err != nil {
				return nil, err
			}
		}
	}
	return h.Session(), nil
}

func (d *dialer) readFull(fd *sys.FD, b []byte, until time.Time) error {
	v := sys.NewVector(1)
	v.Add(b)
	for v.Bytes() > 0 {
		n, err := sys.ReceiveVector(fd, v)
		switch {
		case err == sys.ErrAgain:
			if err := d.wait(fd, false, until); err != nil {
				return err
			}
		case err != nil:
			return err
		case n == 0:
			return errEnded
		}
	}
	return nil
}

// awaitAccepts waits until the peer has taken all sockets, or one has ended: then
// nothing may ever come on the others.
func (d *dialer) awaitAccepts(set []parked) (sends, recvs int, err error) {
	fds := make([]*sys.FD, len(set), len(set)+1)
	for i := range set {
		fds[i] = set[i].fd
	}
	fds = append(fds, d.stop)
	for left := len(set); left > 0; {
		ready, err := sys.WaitReadable(fds, d.deadline)
		if err != nil {
			return 0, 0, err
		}
		for _, i := range ready {
			if i == len(set) {
				return 0, 0, errStopped
			}
			if sends, recvs, err = d.awaitAccept(&set[i]); err != nil {
				return 0, 0, err
			}
			fds[i] = nil
			left--
		}
	}
	return sends, recvs, nil
}

// awaitAccept waits for the peer's word that it is ready. It takes nothing that
// comes after.
func (d *dialer) awaitAccept(p *parked) (sends, recvs int, err error) {
	frame := make([]byte, wire.MaxFrameBytes)
	if err := d.readTaken(p.fd, frame[:wire.LengthBytes]); err != nil {
		return 0, 0, err
	}
	n, err := p.session.FrameBytes(frame)
	if err != nil {
		return 0, 0, err
	}
	if err := d.readTaken(p.fd, frame[wire.LengthBytes:n]); err != nil {
		return 0, 0, err
	}
	h, err := p.session.OpenHead(frame[:n])
	if err != nil {
		return 0, 0, err
	}
	m, ok := decodeMessage(&h)
	sends, recvs = int(min(m.op, MaxDepth+1)), int(min(m.recv, MaxDepth+1))
	if !ok || m.code != codeAccept || !depthsOK(sends, recvs) {
		d.ep.t.counters.Violations.Add(1)
		return 0, 0, errors.New("peer violates the protocol: its first message is not the one that accepts")
	}
	return sends, recvs, nil
}

// readTaken is readFull, which ends with errNotTaken when the connection does.
func (d *dialer) readTaken(fd *sys.FD, b []byte) error {
	err := d.readFull(fd, b, d.deadline)
	if err == nil || errors.Is(err, errStopped) || errors.Is(err, sys.ErrTimeout) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotTaken, err)
}

// options are the settings of every socket.
func (t *Transport) options() sys.TCPOptions {
	return sys.TCPOptions{
		NoDelay: true, UserTimeout: t.config.UnresponsiveTimeout,
		SendBytes: t.config.SocketBufferBytes, ReceiveBytes: t.config.SocketBufferBytes,
	}
}
