package tcp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/safego"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// listener is where connections stay that have not proved yet that they know a key. It
// has a goroutine of its own, so that they cost no other goroutine anything, and bounds:
// how many, how long, and how many bytes each (one frame of a handshake). Everything
// below stop is the goroutine's.
type listener struct {
	t       *Transport
	poller  *sys.Poller
	bell    *sys.FD // rung by close
	sockets []*sys.FD
	addrs   []netip.AddrPort
	quit    chan struct{}
	ended   chan struct{}
	stop    sync.Once
	err     error

	refused accept.Refusal

	pending accept.Pending[*pendingConn]
	waiting map[uint64]*pendingConn // the same, by token
	last    uint64                  // token
}

// pendingConn is one connection that has not proved yet that it knows a key.
type pendingConn struct {
	fd    *sys.FD
	token uint64
	shake *wire.Handshake
}

const (
	backlog       = 128
	pendingTokens = 1 << 32 // tokens from here on are those of pending connections
	acceptRests   = 5 * time.Millisecond
)

var errNotWanted = errors.New("no endpoint waits for this")

func openListener(t *Transport) (*listener, error) {
	l := &listener{t: t, quit: make(chan struct{}), ended: make(chan struct{}), last: pendingTokens, waiting: map[uint64]*pendingConn{}}
	l.pending = accept.NewPending(t.config.NumPending, t.config.HandshakeTimeout, l.discard)
	if err := l.open(); err != nil {
		_ = l.closeFDs()
		return nil, err
	}
	safego.Go("tcp listener", l.run, l.t.down)
	return l, nil
}

func (l *listener) open() (err error) {
	if l.poller, err = sys.NewPoller(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	if l.bell, err = sys.NewEvent(); err != nil {
		return fmt.Errorf("tcp: %w", err)
	}
	for i, addr := range l.t.config.Listen {
		fd, bound, err := sys.ListenTCP(addr, backlog)
		if err != nil {
			return fmt.Errorf("tcp: listening at %v: %w", addr, err)
		}
		l.sockets, l.addrs = append(l.sockets, fd), append(l.addrs, bound)
		if err := errors.Join(sys.SetTCP(fd, l.t.options()), l.poller.AddLevel(fd, uint64(i))); err != nil {
			return fmt.Errorf("tcp: %w", err)
		}
	}
	return nil
}

// close ends the goroutine and waits for it. Idempotent; nil is closed.
func (l *listener) close() error {
	if l == nil {
		return nil
	}
	l.stop.Do(func() {
		close(l.quit)
		_ = sys.Signal(l.bell)
		<-l.ended
		l.err = l.closeFDs()
	})
	return l.err
}

func (l *listener) closeFDs() (err error) {
	l.pending.Close()
	for _, fd := range l.sockets {
		err = errors.Join(err, fd.Close())
	}
	if l.poller != nil {
		err = errors.Join(err, l.poller.Close())
	}
	return errors.Join(err, l.bell.Close())
}

func (l *listener) run() {
	defer close(l.ended)
	events := new(sys.PollEvents)
	for {
		err := l.poller.Sleep(l.bell, l.pollTimeout())
		select {
		case <-l.quit:
			return
		default:
		}
		ready, e := l.poller.Poll(events)
		if err = errors.Join(err, e); err != nil {
			l.t.down(err)
			return
		}
		for i := range ready {
			l.serve(&ready[i])
		}
		l.t.counters.Late.Add(uint64(l.pending.Expire(time.Now())))
	}
}

// pollTimeout is how long the oldest pending connection may still stay.
func (l *listener) pollTimeout() time.Duration {
	if next := l.pending.Next(); !next.IsZero() {
		return max(0, time.Until(next))
	}
	return -1
}

func (l *listener) serve(r *sys.Ready) {
	if r.Token < pendingTokens {
		l.admit(l.sockets[r.Token])
		return
	}
	if g := l.waiting[r.Token]; g != nil && r.Readable {
		l.advance(g)
	}
}

// admit takes connections from a listening socket, not for ever.
func (l *listener) admit(socket *sys.FD) {
	if err := accept.Take(socket, l.greet); err != nil { // others may end soon
		l.refused.Note(err)
		time.Sleep(acceptRests)
	}
}

// greet makes a pending connection of a socket.
func (l *listener) greet(fd *sys.FD) {
	l.t.counters.Accepted.Add(1)
	config := l.t.wire
	config.Accept = l.checkPeer
	shake, err := wire.NewHandshake(wire.RoleServer, config)
	l.last++
	if err == nil {
		err = sys.SetTCP(fd, l.t.options())
	}
	if err == nil {
		err = l.poller.Add(fd, l.last)
	}
	if err != nil {
		l.refused.Note(err)
		_ = fd.Close()
		return
	}
	g := &pendingConn{fd: fd, token: l.last, shake: shake}
	if l.pending.Add(g) {
		l.t.counters.Crowded.Add(1)
	}
	l.waiting[g.token] = g
	l.advance(g)
}

// checkPeer looks at what the dialler has said of itself. It changes nothing: this may be a
// recording.
func (l *listener) checkPeer(p wire.Peer) ([]byte, error) {
	j, ok := decodeJoin(p.Blob)
	ep := l.t.find(j.to)
	if !ok || j.num > l.t.config.NumSockets || ep == nil || !ep.waitsFor(j.from) {
		l.t.counters.NotWanted.Add(1)
		return nil, errNotWanted
	}
	return nil, nil
}

// dismiss ends a connection that is pending.
func (l *listener) dismiss(g *pendingConn) {
	l.pending.Remove(g)
	l.discard(g)
}

func (l *listener) discard(g *pendingConn) {
	delete(l.waiting, g.token)
	g.shake.Close()
	_ = g.fd.Close()
}

// advance goes on with a handshake.
func (l *listener) advance(g *pendingConn) {
	var buf [512]byte
	v := sys.NewVector(1)
	for {
		v.Reset()
		in := buf[:min(len(buf), g.shake.Need())]
		v.Add(in)
		n, err := sys.ReceiveVector(g.fd, v)
		if err == sys.ErrAgain {
			return
		}
		if err != nil || n == 0 {
			l.t.counters.Ended.Add(1)
			l.dismiss(g)
			return
		}
		if !l.step(g, in[:n]) {
			return
		}
	}
}

// step returns whether the connection stays.
func (l *listener) step(g *pendingConn, in []byte) bool {
	_, out, err := g.shake.Step(in)
	if out != nil {
		if e := writeAll(g.fd, out); err == nil {
			err = e
		}
	}
	if err != nil || g.shake.Need() == 0 && !g.shake.Done() {
		l.t.counters.Refused.Add(1)
		l.dismiss(g)
		return false
	}
	if !g.shake.Done() {
		return true
	}
	l.join(g)
	return false
}

// join hands a connection over to its endpoint.
func (l *listener) join(g *pendingConn) {
	l.pending.Remove(g)
	delete(l.waiting, g.token)
	j, _ := decodeJoin(g.shake.Peer().Blob) // checkPeer has seen it
	err := l.poller.Remove(g.fd)
	ep := l.t.find(j.to)
	if err != nil || ep == nil || !ep.offer(parked{fd: g.fd, session: g.shake.Session(), join: j}) {
		l.t.counters.NotWanted.Add(1)
		_ = g.fd.Close()
		return
	}
	l.t.counters.Joined.Add(1)
}
