//go:build linux

package sys

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lingerTime is how long a call waits on its own thread. The other deadlines are seen that much later at most.
const lingerTime = 3 * time.Millisecond

// A thread that waits in the kernel keeps one of Go's processors for a while from the goroutines that are ready to run.
// So fewer threads than there are processors wait there at a time, but one at least.
var threads struct{ most, busy atomic.Int32 }

func countThreads() { threads.most.Store(int32(max(1, runtime.GOMAXPROCS(0)-1))) }

func takeThread() bool {
	if threads.busy.Add(1) <= threads.most.Load() {
		return true
	}
	giveThread()
	return false
}

func giveThread() { threads.busy.Add(-1) }

// side is one direction of a SocketConn.
type side struct {
	events   int16
	lingers  atomic.Bool  // it may wait on its own thread
	deadline atomic.Int64 // on the clock of ticks; 0: none
	parked   atomic.Bool
	gate     gate
}

var began = time.Now()

// ticks is a time as a number that is not 0.
func ticks(t time.Time) int64 { return max(1, int64(t.Sub(began))) }

func (s *side) set(t time.Time) {
	at := int64(0)
	if !t.IsZero() {
		at = ticks(t)
	}
	s.deadline.Store(at)
	if s.parked.Load() {
		s.gate.until(&s.deadline)
	}
}

func (s *side) isOver() bool {
	at := s.deadline.Load()
	return at != 0 && ticks(time.Now()) >= at
}

// left is how long there is until the deadline, and d at most.
func (s *side) left(d time.Duration) time.Duration {
	if at := s.deadline.Load(); at != 0 {
		d = min(d, time.Duration(at-ticks(time.Now())))
	}
	return max(0, d)
}

// Linger says whether reads wait on their own thread at first: where the other side answers at once, and nothing else is
// to run on this thread meanwhile. For the goroutine that reads.
func (c *SocketConn) Linger(on bool) { c.reads.lingers.Store(on) }

// Await waits on this thread for bytes, or the end, for a moment and d at most. false: none has come, or as many threads
// wait as may. For the goroutine that reads.
func (c *SocketConn) Await(d time.Duration) bool {
	if !c.enter() {
		return true
	}
	defer func() { _ = c.leave() }()
	return c.here(unix.POLLIN, min(d, lingerTime))
}

// here waits on this thread.
func (c *SocketConn) here(events int16, d time.Duration) bool {
	if !takeThread() {
		return false
	}
	defer giveThread()
	return c.poll(events, d)
}

func (c *SocketConn) poll(events int16, d time.Duration) bool {
	set := [1]unix.PollFd{{Fd: int32(c.fd.Raw()), Events: events}}
	ts := unix.NsecToTimespec(int64(d))
	n, _ := unix.Ppoll(set[:], &ts, nil)
	return n > 0
}

// wait waits until a call is worth another try, or its deadline is over.
func (c *SocketConn) wait(s *side) error {
	if s.lingers.Load() && c.here(s.events, s.left(lingerTime)) {
		return nil
	}
	s.parked.Store(true)
	defer s.parked.Store(false)
	err := s.gate.pass(c.fd, uint32(s.events), &s.deadline)
	if errors.Is(err, errNoGate) {
		c.poll(s.events, s.left(lingerTime))
		return nil
	}
	return c.parting(err)
}

// parting is what the end of a wait by way of the poller says.
func (c *SocketConn) parting(err error) error {
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return c.cause(err)
}

// AwaitEnd waits until the other side has ended the connection, or this one; it does not wake for bytes. One call at a time.
func (c *SocketConn) AwaitEnd() error {
	if !c.enter() {
		return net.ErrClosed
	}
	defer func() { _ = c.leave() }()
	var never atomic.Int64
	return c.parting(c.ends.pass(c.fd, unix.EPOLLRDHUP, &never))
}

// errNoGate means that there is no descriptor for a gate.
var errNoGate = errors.New("no gate")

// gate is a set of one socket, which Go's poller watches in place of the socket. It says nothing between two calls of pass.
type gate struct {
	file   *os.File
	raw    syscall.RawConn
	number int
	event  [1]unix.EpollEvent
	ready  func(uintptr) bool

	mu  sync.Mutex
	set int64 // the deadline
}

// open makes the set, the first time.
func (g *gate) open(fd *FD) error {
	if g.file != nil {
		return nil
	}
	defer holdForks().release()
	if err := injected("epoll_create1"); err != nil {
		return errNoGate
	}
	raw, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return errNoGate
	}
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT}
	err = errors.Join(unix.SetNonblock(raw, true), unix.EpollCtl(raw, unix.EPOLL_CTL_ADD, fd.Raw(), &ev))
	if err != nil {
		_ = unix.Close(raw)
		return errNoGate
	}
	file := os.NewFile(uintptr(raw), "epoll")
	if g.raw, err = file.SyscallConn(); err != nil {
		_ = file.Close()
		return err
	}
	noteFD(raw)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.file, g.number, g.ready = file, raw, g.look
	return nil
}

// look takes what the set has to say.
func (g *gate) look(raw uintptr) bool {
	n, err := unix.EpollWait(int(raw), g.event[:], 0)
	return n > 0 || err != nil && err != unix.EINTR
}

// pass waits for events of the socket.
func (g *gate) pass(fd *FD, events uint32, deadline *atomic.Int64) error {
	if err := g.open(fd); err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: events | unix.EPOLLONESHOT}
	if err := unix.EpollCtl(g.number, unix.EPOLL_CTL_MOD, fd.Raw(), &ev); err != nil {
		return wrap("epoll_ctl mod", err)
	}
	g.until(deadline)
	return g.raw.Read(g.ready)
}

// until makes the deadline that of the wait.
func (g *gate) until(deadline *atomic.Int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := deadline.Load()
	if g.file == nil || g.set == at {
		return
	}
	g.set = at
	when := time.Time{}
	if at != 0 {
		when = began.Add(time.Duration(at))
	}
	_ = g.file.SetReadDeadline(when)
}

func (g *gate) close() {
	if g.file != nil {
		_ = closeNoted(g.number, func(int) error { return g.file.Close() })
	}
}
