//go:build linux

package sys

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ready is one report of a Poller.
type Ready struct {
	Token    uint64
	Readable bool // or ended, or failed
	Ended    bool // the other end has closed
	Writable bool
}

// Poller waits for many sockets at once. It reports changes (edges), not
// states: read and write until ErrAgain after each. All methods but Close may
// run at the same time; each Wait needs its own events.
type Poller struct {
	fd      *FD
	coarse  atomic.Bool // the kernel waits in whole milliseconds only
	another *FD         // Interrupt
}

// PollEvents is where Wait puts what the kernel reports.
type PollEvents struct {
	raw  [64]unix.EpollEvent
	list [64]Ready
}

const interruptToken = ^uint64(0)

// NewPoller makes an empty set.
func NewPoller() (*Poller, error) {
	raw, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, wrap("epoll_create1", err)
	}
	p := &Poller{fd: newFD(raw)}
	if p.another, err = NewEvent(); err == nil {
		err = p.add(p.another, interruptToken, unix.EPOLLIN)
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// Add reports edges of fd with token, which is not the largest number. A
// closed descriptor leaves by itself.
func (p *Poller) Add(fd *FD, token uint64) error {
	return p.add(fd, token, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
}

// AddLevel reports fd for as long as it is readable.
func (p *Poller) AddLevel(fd *FD, token uint64) error { return p.add(fd, token, unix.EPOLLIN) }

func (p *Poller) add(fd *FD, token uint64, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
	return wrap("epoll_ctl add", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_ADD, fd.Raw(), &ev))
}

// Interrupt ends one Wait, now or the next.
func (p *Poller) Interrupt() { _ = Signal(p.another) }

// Wait returns what is ready, after at most d (negative: no bound; 0: at
// once). The list is valid until the next Wait with the same events. Nothing
// may be ready before d has passed, after an Interrupt.
func (p *Poller) Wait(e *PollEvents, d time.Duration) ([]Ready, error) {
	n, err := p.wait(e, d)
	if err != nil {
		if err == unix.EINTR {
			return nil, nil
		}
		return nil, wrap("epoll_pwait2", err)
	}
	ready := e.list[:0]
	for i := range n {
		ev := &e.raw[i]
		token := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
		if token == interruptToken {
			p.drain()
			continue
		}
		ready = append(ready, Ready{
			Token:    token,
			Readable: ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0,
			Ended:    ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0,
			Writable: ev.Events&(unix.EPOLLOUT|unix.EPOLLERR) != 0,
		})
	}
	return ready, nil
}

func (p *Poller) wait(e *PollEvents, d time.Duration) (int, error) {
	if d > 0 && !p.coarse.Load() {
		n, err := p.waitFine(e, d)
		if err != unix.ENOSYS {
			return n, err
		}
		p.coarse.Store(true) // before Linux 5.11
	}
	ms := -1
	if d >= 0 {
		ms = int(min((d+time.Millisecond-1)/time.Millisecond, 1<<30))
	}
	return unix.EpollWait(p.fd.Raw(), e.raw[:], ms)
}

func (p *Poller) waitFine(e *PollEvents, d time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(d))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd.Raw()),
		uintptr(unsafe.Pointer(&e.raw[0])), uintptr(len(e.raw)), uintptr(unsafe.Pointer(&ts)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

func (p *Poller) drain() {
	var b [8]byte
	_, _ = unix.Read(p.another.Raw(), b[:])
}

// Close ends the set. Idempotent.
func (p *Poller) Close() error {
	err := p.another.Close()
	if e := p.fd.Close(); e != nil {
		err = e
	}
	return err
}

// Remove takes a descriptor out of the set. Closing it does that, too.
func (p *Poller) Remove(fd *FD) error {
	return wrap("epoll_ctl del", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_DEL, fd.Raw(), nil))
}

// WaitSocket waits until a socket can be read, or written, or has failed; nil
// stands for one that never is. It ends with ErrTimeout at until, and with
// stopped once stop is readable.
func WaitSocket(fd *FD, write bool, stop *FD, until time.Time) (stopped bool, err error) {
	set := [2]unix.PollFd{{Fd: int32(stop.Raw()), Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}}
	if fd != nil {
		set[1].Fd = int32(fd.Raw())
	}
	if write {
		set[1].Events = unix.POLLOUT
	}
	for {
		ts := unix.NsecToTimespec(max(0, int64(time.Until(until))))
		n, err := unix.Ppoll(set[:], &ts, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return false, wrap("ppoll", err)
		case n == 0 && !time.Now().Before(until):
			return false, wrap("ppoll", ErrTimeout)
		case n > 0:
			return set[0].Revents != 0, nil
		}
	}
}
