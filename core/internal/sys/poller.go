//go:build linux

package sys

import (
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
	Errors   bool // there is something in the error queue, or it has failed
}

// Poller waits for many sockets at once. It reports changes (edges), not
// states: read and write until ErrAgain after each. All methods but Close may
// run at the same time; each Poll needs its own events. One Poll alone returns
// a change.
type Poller struct {
	fd *FD
}

// PollEvents is where Poll puts what the kernel reports.
type PollEvents struct {
	raw  [64]unix.EpollEvent
	list [64]Ready
}

// NewPoller makes an empty set.
func NewPoller() (*Poller, error) {
	if err := injected("epoll_create1"); err != nil {
		return nil, wrap("epoll_create1", err)
	}
	raw, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, wrap("epoll_create1", err)
	}
	return &Poller{fd: newFD(raw)}, nil
}

// Add reports edges of fd with token. A closed descriptor leaves by itself.
func (p *Poller) Add(fd *FD, token uint64) error {
	return p.add(fd, token, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET)
}

// AddLevel reports fd for as long as it is readable.
func (p *Poller) AddLevel(fd *FD, token uint64) error { return p.add(fd, token, unix.EPOLLIN) }

func (p *Poller) add(fd *FD, token uint64, events uint32) error {
	if err := injected("epoll_ctl add"); err != nil {
		return wrap("epoll_ctl add", err)
	}
	ev := unix.EpollEvent{Events: events, Fd: int32(token), Pad: int32(token >> 32)}
	return wrap("epoll_ctl add", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_ADD, fd.Raw(), &ev))
}

// Poll returns what is ready now, without waiting. The list is valid until the
// next call with the same events.
func (p *Poller) Poll(e *PollEvents) ([]Ready, error) {
	n, err := unix.EpollWait(p.fd.Raw(), e.raw[:], 0)
	if err != nil {
		if err == unix.EINTR {
			return nil, nil
		}
		return nil, wrap("epoll_wait", err)
	}
	for i := range n {
		ev := &e.raw[i]
		e.list[i] = Ready{
			Token:    uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32,
			Readable: ev.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0,
			Ended:    ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP) != 0,
			Writable: ev.Events&(unix.EPOLLOUT|unix.EPOLLERR) != 0,
			Errors:   ev.Events&unix.EPOLLERR != 0,
		}
	}
	return e.list[:n], nil
}

// IsReady reports whether Poll has something to return.
func (p *Poller) IsReady() bool {
	set := [1]unix.PollFd{{Fd: int32(p.fd.Raw()), Events: unix.POLLIN}}
	n, _ := unix.Ppoll(set[:], &unix.Timespec{}, nil)
	return n == 1 // an error is for Poll to return
}

// Sleep waits until Poll has something to return, bell was signalled, or d has
// passed (negative: no bound). It clears the bell. Several may sleep, each with
// its own bell. It may end early.
func (p *Poller) Sleep(bell *FD, d time.Duration) error {
	set := [2]unix.PollFd{
		{Fd: int32(p.fd.Raw()), Events: unix.POLLIN}, {Fd: int32(bell.Raw()), Events: unix.POLLIN},
	}
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	until := &ts
	if d < 0 {
		until = nil
	}
	if _, err := unix.Ppoll(set[:], until, nil); err != nil && err != unix.EINTR {
		return wrap("ppoll", err)
	}
	if set[1].Revents != 0 {
		// unix.Read would have the race detector put b on the heap.
		var b uint64
		_, _, _ = unix.Syscall(unix.SYS_READ, uintptr(bell.Raw()), uintptr(unsafe.Pointer(&b)), unsafe.Sizeof(b))
	}
	return nil
}

// Close ends the set. Idempotent.
func (p *Poller) Close() error { return p.fd.Close() }

// Remove takes a descriptor out of the set. Closing it does that, too.
func (p *Poller) Remove(fd *FD) error {
	return wrap("epoll_ctl del", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_DEL, fd.Raw(), nil))
}

// WaitSocket waits until a socket can be read, or written, or has failed. A nil
// socket never is. It returns ErrTimeout at the time until, and stopped once
// stop is readable.
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
