//go:build linux

package sys

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Sending without a copy: the kernel reads the caller's memory until it says
// in the socket's error queue that it does not any more.

// ErrNoBuffers means that the kernel will not keep more memory in place:
// nothing was sent, send a copy.
var ErrNoBuffers error = unix.ENOBUFS

// AllowPinned prepares a TCP socket for SendPinned; an error where the kernel
// does not know of it.
func AllowPinned(fd *FD) error {
	return wrap("setsockopt SO_ZEROCOPY", unix.SetsockoptInt(fd.Raw(), unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1))
}

// SendPinned is SendVector without a copy. The bytes that it took must stay as
// they are until a notice names the call: those of a socket that took anything
// have numbers, from 0. ErrNoBuffers when there are too many.
func SendPinned(fd *FD, v *Vector) (n int, err error) {
	n, err = v.call(fd, unix.SYS_SENDMSG, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT|unix.MSG_ZEROCOPY)
	return n, wrapHot("sendmsg", err)
}

// SendMore is SendVector for bytes behind which others come at once.
func SendMore(fd *FD, v *Vector) (n int, err error) {
	n, err = v.call(fd, unix.SYS_SENDMSG, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT|unix.MSG_MORE)
	return n, wrapHot("sendmsg", err)
}

// Notice says that the kernel reads the memory of some calls no more.
type Notice struct {
	First, Last uint32 // calls of SendPinned
	Copied      bool   // it has made copies after all
}

// Notices reads what a kernel says of calls of SendPinned. It is for one
// goroutine at a time and allocates nothing.
type Notices struct {
	msg     unix.Msghdr
	control [128]byte
}

// Next takes the next notice; ok is false when there is none.
func (n *Notices) Next(fd *FD) (notice Notice, ok bool) {
	for {
		n.msg = unix.Msghdr{Control: &n.control[0]}
		n.msg.SetControllen(len(n.control))
		_, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd.Raw()), uintptr(unsafe.Pointer(&n.msg)),
			unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		switch {
		case errno == unix.EINTR:
			continue
		case errno != 0:
			return Notice{}, false
		}
		if notice, ok = n.parse(); ok {
			return notice, true
		}
	}
}

// parse looks at the one control message that a notice has.
func (n *Notices) parse() (notice Notice, ok bool) {
	const all = unix.SizeofCmsghdr + int(unsafe.Sizeof(unix.SockExtendedErr{}))
	if int(n.msg.Controllen) < all {
		return notice, false
	}
	head := (*unix.Cmsghdr)(unsafe.Pointer(&n.control[0]))
	v4 := head.Level == unix.SOL_IP && head.Type == unix.IP_RECVERR
	v6 := head.Level == unix.SOL_IPV6 && head.Type == unix.IPV6_RECVERR
	e := (*unix.SockExtendedErr)(unsafe.Pointer(&n.control[unix.SizeofCmsghdr]))
	if !v4 && !v6 || e.Origin != unix.SO_EE_ORIGIN_ZEROCOPY || e.Errno != 0 {
		return notice, false
	}
	return Notice{First: e.Info, Last: e.Data, Copied: e.Code&unix.SO_EE_CODE_ZEROCOPY_COPIED != 0}, true
}

// AbortTCP ends a connection at once, drops what was not sent, and leaves the
// descriptor open, so that notices can be read.
func AbortTCP(fd *FD) error {
	sa := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd.Raw()), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		return wrap("connect AF_UNSPEC", errno)
	}
	return nil
}

// IsLocal reports whether both ends of a connected socket are on this host, as
// far as addresses show it.
func IsLocal(fd *FD) bool {
	peer, err := unix.Getpeername(fd.Raw())
	if err != nil {
		return false
	}
	self, err := unix.Getsockname(fd.Raw())
	return err == nil && (addrOf(peer).IsLoopback() || addrOf(peer) == addrOf(self))
}

func addrOf(sa unix.Sockaddr) netip.Addr {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(sa.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(sa.Addr).Unmap()
	}
	return netip.Addr{}
}
