//go:build linux

package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Vector is a list of pieces of memory that one call sends or fills. It is
// for one goroutine at a time; nothing in it allocates once it is made.
type Vector struct {
	all   []unix.Iovec
	iov   []unix.Iovec // what is left of all
	bytes int
	msg   unix.Msghdr
}

// MaxPieces is the longest vector that the system takes in one call.
const MaxPieces = 1024

// NewVector makes an empty vector for at most numPieces pieces.
func NewVector(numPieces int) *Vector {
	v := &Vector{all: make([]unix.Iovec, 0, min(numPieces, MaxPieces))}
	v.iov = v.all
	return v
}

// Reset empties the vector.
func (v *Vector) Reset() {
	clear(v.all)
	v.all = v.all[:0]
	v.iov, v.bytes = v.all, 0
}

// Free is how many pieces still fit.
func (v *Vector) Free() int { return cap(v.all) - len(v.all) }

// Bytes is what is left to move.
func (v *Vector) Bytes() int { return v.bytes }

// Add appends a piece; an empty one is left out. It panics if nothing is Free.
func (v *Vector) Add(p []byte) {
	if len(p) == 0 {
		return
	}
	if v.Free() == 0 {
		panic("sys.Vector: no room")
	}
	done := len(v.all) - len(v.iov)
	v.all = append(v.all, unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))})
	v.iov = v.all[done:]
	v.bytes += len(p)
}

// Advance takes the first n bytes off.
func (v *Vector) Advance(n int) {
	v.bytes -= n
	for n > 0 {
		first := &v.iov[0]
		if uint64(n) < first.Len {
			first.Base = (*byte)(unsafe.Add(unsafe.Pointer(first.Base), n))
			first.Len -= uint64(n)
			return
		}
		n -= int(first.Len)
		v.iov = v.iov[1:]
	}
}

// SendVector writes what it can and advances the vector by it; ErrAgain when
// the socket is full.
func SendVector(fd *FD, v *Vector) (n int, err error) {
	n, err = v.call(fd, unix.SYS_SENDMSG, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	return n, wrapHot("sendmsg", err)
}

// ReceiveVector fills what has arrived and advances the vector by it;
// ErrAgain when nothing has; 0 without an error at the end of the stream.
func ReceiveVector(fd *FD, v *Vector) (n int, err error) {
	n, err = v.call(fd, unix.SYS_RECVMSG, unix.MSG_DONTWAIT)
	return n, wrapHot("recvmsg", err)
}

func (v *Vector) call(fd *FD, number uintptr, flags int) (int, error) {
	if len(v.iov) == 0 {
		return 0, nil
	}
	v.msg.Iov = &v.iov[0]
	v.msg.SetIovlen(len(v.iov))
	for {
		n, _, errno := unix.Syscall(number, uintptr(fd.Raw()), uintptr(unsafe.Pointer(&v.msg)), uintptr(flags))
		switch errno {
		case 0:
			v.Advance(int(n))
			return int(n), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return 0, ErrAgain
		case unix.ENOBUFS:
			return 0, ErrNoBuffers
		default:
			return 0, errno
		}
	}
}

// wrapHot is wrap, but the answers that are no failures stay as they are, so
// that they allocate nothing.
func wrapHot(call string, err error) error {
	if err == nil || err == ErrAgain || err == ErrNoBuffers {
		return err
	}
	return wrap(call, err)
}
