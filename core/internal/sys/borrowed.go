//go:build linux

package sys

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What is done to descriptors that a C library owns and closes: here they are
// plain numbers.

// SetNonblocking makes reads of a descriptor fail with EAGAIN instead of
// blocking.
func SetNonblocking(raw int) error {
	return wrap("fcntl O_NONBLOCK", unix.SetNonblock(raw, true))
}

// Readable waits until one of up to 32 descriptors can be read. Close may be called when
// no goroutine waits any more.
type Readable struct {
	fd     *FD
	events [32]unix.EpollEvent // of the one goroutine in Wait
}

// NewReadable makes an empty set.
func NewReadable() (*Readable, error) {
	raw, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, wrap("epoll_create1", err)
	}
	return &Readable{fd: newFD(raw)}, nil
}

// Add watches a descriptor for as long as it is open; token is its bit in what
// Wait returns.
func (p *Readable) Add(raw int, token uint) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(token)}
	return wrap("epoll_ctl add", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_ADD, raw, &ev))
}

// Raw is a descriptor that is readable while one of the set is; it belongs to
// the set.
func (p *Readable) Raw() int { return p.fd.Raw() }

// Remove ends the watch of a descriptor.
func (p *Readable) Remove(raw int) error {
	return wrap("epoll_ctl del", unix.EpollCtl(p.fd.Raw(), unix.EPOLL_CTL_DEL, raw, nil))
}

// Wait blocks until something can be read or d has passed, at most an hour, and
// returns one bit per token. It may return early with none. One goroutine at a
// time; it allocates nothing.
func (p *Readable) Wait(d time.Duration) (ready uint32, err error) {
	d = min(max(d, 0), time.Hour)
	if d%time.Millisecond != 0 { // epoll_wait knows whole ones only
		if some, err := p.sleep(d); !some || err != nil {
			return 0, err
		}
		d = 0
	}
	ms := d / time.Millisecond
	n, err := unix.EpollWait(p.fd.Raw(), p.events[:], int(ms))
	if err == unix.EINTR {
		return 0, nil
	}
	for i := range max(n, 0) {
		ready |= 1 << uint(p.events[i].Fd)
	}
	return ready, wrap("epoll_wait", err)
}

// sleep waits for something that can be read, and reports whether there is.
func (p *Readable) sleep(d time.Duration) (some bool, err error) {
	set := [1]unix.PollFd{{Fd: int32(p.fd.Raw()), Events: unix.POLLIN}}
	ts := unix.NsecToTimespec(int64(d))
	n, err := unix.Ppoll(set[:], &ts, nil)
	if err == unix.EINTR {
		return false, nil
	}
	return n > 0, wrap("ppoll", err)
}

// Close closes the set, not what is in it. Idempotent; nil is closed.
func (p *Readable) Close() error {
	if p == nil {
		return nil
	}
	return p.fd.Close()
}

// Unsignal makes an event that Signal made readable unreadable again.
func Unsignal(event *FD) error {
	var count [8]byte
	err := retry(func() error {
		_, err := unix.Read(event.Raw(), count[:])
		return err
	})
	if err == unix.EAGAIN { // there was no signal
		return nil
	}
	return wrap("read eventfd", err)
}

// MapAnonymous maps n bytes of zeroed memory that no other program reaches. A
// child of fork shares it, so that no page is copied behind a device's back. It is
// address space until it is touched.
func MapAnonymous(n int64) (*Mapping, error) {
	if err := injected("mmap"); err != nil {
		return nil, wrap("mmap", err)
	}
	const flags = unix.MAP_SHARED | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, wrap("mmap", err)
	}
	mappings.Add(1)
	mappedBytes.Add(n)
	return &Mapping{data: unsafe.Slice((*byte)(at), n), bytes: int(n)}, nil
}
