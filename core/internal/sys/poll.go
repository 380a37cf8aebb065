//go:build linux

package sys

import (
	"time"

	"golang.org/x/sys/unix"
)

// WaitReadable waits until at least one of fds can be read (or has ended) and
// returns the indices of those. It ends with ErrTimeout at until. A nil or
// closed FD is never ready.
func WaitReadable(fds []*FD, until time.Time) ([]int, error) {
	set := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		set[i] = unix.PollFd{Fd: -1, Events: unix.POLLIN}
		if fd != nil {
			set[i].Fd = int32(fd.Raw())
		}
	}
	for {
		ts := unix.NsecToTimespec(max(0, int64(time.Until(until))))
		n, err := unix.Ppoll(set, &ts, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, wrap("ppoll", err)
		case n == 0 && !time.Now().Before(until):
			return nil, wrap("ppoll", ErrTimeout)
		case n > 0:
			return readyOnes(set), nil
		}
	}
}

func readyOnes(set []unix.PollFd) (ready []int) {
	for i := range set {
		if set[i].Revents != 0 {
			ready = append(ready, i)
		}
	}
	return ready
}

// Epoll waits for many descriptors at once. Add, Remove and Wait may run at
// the same time; Close only when none of them does.
type Epoll struct {
	fd     *FD
	events [32]unix.EpollEvent // of the one goroutine in Wait
}

// NewEpoll makes an empty set.
func NewEpoll() (*Epoll, error) {
	if err := injected("epoll_create1"); err != nil {
		return nil, wrap("epoll_create1", err)
	}
	raw, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, wrap("epoll_create1", err)
	}
	return &Epoll{fd: newFD(raw)}, nil
}

// Add reports fd's token once, when fd becomes readable or ends.
func (e *Epoll) Add(fd *FD, token int32) error {
	if err := injected("epoll_ctl add"); err != nil {
		return wrap("epoll_ctl add", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: token}
	return wrap("epoll_ctl add", unix.EpollCtl(e.fd.Raw(), unix.EPOLL_CTL_ADD, fd.Raw(), &ev))
}

// Rearm is Add again, after fd was reported.
func (e *Epoll) Rearm(fd *FD, token int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: token}
	return wrap("epoll_ctl mod", unix.EpollCtl(e.fd.Raw(), unix.EPOLL_CTL_MOD, fd.Raw(), &ev))
}

// RearmEnd is Rearm for the end of a connection only: both sides of it are shut
// down, or the other one is closed.
func (e *Epoll) RearmEnd(fd *FD, token int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: token} // EPOLLHUP always counts
	return wrap("epoll_ctl mod", unix.EpollCtl(e.fd.Raw(), unix.EPOLL_CTL_MOD, fd.Raw(), &ev))
}

// Remove takes fd out of the set. Do it before closing fd.
func (e *Epoll) Remove(fd *FD) error {
	return wrap("epoll_ctl del", unix.EpollCtl(e.fd.Raw(), unix.EPOLL_CTL_DEL, fd.Raw(), nil))
}

// Wait blocks until something is ready and appends the tokens to dst. Only
// one goroutine may wait.
func (e *Epoll) Wait(dst []int32) ([]int32, error) { return e.WaitFor(dst, -1) }

// WaitFor is Wait for at most d, rounded up to milliseconds, or a little longer
// where signals interrupt it; a negative one is no bound.
func (e *Epoll) WaitFor(dst []int32, d time.Duration) ([]int32, error) {
	ms := -1
	if d >= 0 {
		ms = int((d + time.Millisecond - 1) / time.Millisecond)
	}
	n, err := unix.EpollWait(e.fd.Raw(), e.events[:], ms)
	for err == unix.EINTR && d < 0 {
		n, err = unix.EpollWait(e.fd.Raw(), e.events[:], ms)
	}
	if err == unix.EINTR {
		return dst, nil
	}
	if err != nil {
		return dst, wrap("epoll_wait", err)
	}
	for i := range n {
		dst = append(dst, e.events[i].Fd)
	}
	return dst, nil
}

// Close closes the set. Idempotent.
func (e *Epoll) Close() error { return e.fd.Close() }

// NewEvent makes an eventfd: readable for ever once Signal was called.
func NewEvent() (*FD, error) {
	if err := injected("eventfd"); err != nil {
		return nil, wrap("eventfd", err)
	}
	raw, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, wrap("eventfd", err)
	}
	return newFD(raw), nil
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// Signal makes an event readable.
func Signal(event *FD) error {
	err := retry(func() error {
		_, err := unix.Write(event.Raw(), one)
		return err
	})
	if err == unix.EAGAIN { // the counter is at its maximum, so it is readable
		return nil
	}
	return wrap("write eventfd", err)
}
