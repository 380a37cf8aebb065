//go:build linux

package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sockets between hosts: stream sockets, non-blocking, close-on-exec.

// Sentinels of TCP sockets.
var (
	// ErrInProgress means that a dial goes on: wait until the socket can be
	// written, then call FinishDial.
	ErrInProgress error = unix.EINPROGRESS
	// ErrReset means that the other end closed while bytes were under way.
	ErrReset error = unix.ECONNRESET
)

// ListenTCP listens at an address; port 0 lets the system choose. It returns
// the address with its port.
func ListenTCP(addr netip.AddrPort, backlog int) (*FD, netip.AddrPort, error) {
	fd, err := newTCP(addr)
	if err != nil {
		return nil, addr, err
	}
	if err := bindAndListen(fd, addr, backlog); err != nil {
		return nil, addr, errors.Join(err, fd.Close())
	}
	bound, err := unix.Getsockname(fd.Raw())
	if err != nil {
		return nil, addr, errors.Join(wrap("getsockname", err), fd.Close())
	}
	return fd, netip.AddrPortFrom(addr.Addr(), portOf(bound)), nil
}

func bindAndListen(fd *FD, addr netip.AddrPort, backlog int) error {
	if err := unix.SetsockoptInt(fd.Raw(), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return wrap("setsockopt SO_REUSEADDR", err)
	}
	if err := unix.Bind(fd.Raw(), sockaddr(addr)); err != nil {
		return wrap("bind", err)
	}
	return wrap("listen", unix.Listen(fd.Raw(), backlog))
}

// DialTCP begins to connect. With ErrInProgress, the socket is returned, too.
func DialTCP(addr netip.AddrPort, opts TCPOptions) (*FD, error) {
	fd, err := newTCP(addr)
	if err != nil {
		return nil, err
	}
	if err := SetTCP(fd, opts); err != nil {
		return nil, errors.Join(err, fd.Close())
	}
	err = unix.Connect(fd.Raw(), sockaddr(addr))
	if err == unix.EINPROGRESS || err == unix.EINTR {
		return fd, ErrInProgress
	}
	if err != nil {
		return nil, errors.Join(wrap("connect", err), fd.Close())
	}
	return fd, nil
}

// FinishDial says how a dial ended.
func FinishDial(fd *FD) error {
	code, err := unix.GetsockoptInt(fd.Raw(), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return wrap("connect", err)
}

// TCPOptions are the settings of a connected socket. 0 leaves the system's.
type TCPOptions struct {
	NoDelay      bool
	SendBytes    int           // SO_SNDBUF; 0: the system tunes it
	ReceiveBytes int           // SO_RCVBUF; 0: the system tunes it
	UserTimeout  time.Duration // unanswered for so long: broken
}

// SetTCP applies options.
func SetTCP(fd *FD, o TCPOptions) error {
	type option struct {
		level, name, value int
		set                bool
	}
	probe := int(max(1, o.UserTimeout/(3*time.Second)))
	for _, s := range []option{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1, o.NoDelay},
		{unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBytes, o.SendBytes > 0},
		{unix.SOL_SOCKET, unix.SO_RCVBUF, o.ReceiveBytes, o.ReceiveBytes > 0},
		{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.UserTimeout / time.Millisecond), o.UserTimeout > 0},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1, o.UserTimeout > 0},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, probe, o.UserTimeout > 0},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, probe, o.UserTimeout > 0},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2, o.UserTimeout > 0},
	} {
		if !s.set {
			continue
		}
		if err := unix.SetsockoptInt(fd.Raw(), s.level, s.name, s.value); err != nil {
			return wrap("setsockopt "+strconv.Itoa(s.name), err)
		}
	}
	return nil
}

// SetLeast makes a socket readable only once n bytes are there, its buffer is
// full, or the other end has closed. Reading takes less, too.
func SetLeast(fd *FD, n int) error {
	return wrap("setsockopt SO_RCVLOWAT", unix.SetsockoptInt(fd.Raw(), unix.SOL_SOCKET, unix.SO_RCVLOWAT, n))
}

// ShutdownWrite ends the stream towards the peer; reading goes on.
func ShutdownWrite(fd *FD) error {
	return wrap("shutdown", unix.Shutdown(fd.Raw(), unix.SHUT_WR))
}

// Ended reports whether the peer has closed a socket from which nothing was
// read yet. It takes nothing from the stream.
func Ended(fd *FD) bool {
	var b [1]byte
	n, _, err := unix.Recvfrom(fd.Raw(), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
}

func newTCP(addr netip.AddrPort) (*FD, error) {
	family := unix.AF_INET6
	if addr.Addr().Unmap().Is4() {
		family = unix.AF_INET
	}
	fd, err := makeNoted(func() (int, error) {
		if err := injected("socket"); err != nil {
			return -1, err
		}
		return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	})
	return fd, wrap("socket", err)
}

func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	a := addr.Addr().Unmap()
	if a.Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: a.As4()}
	}
	zone, _ := strconv.ParseUint(a.Zone(), 10, 32)
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: a.As16(), ZoneId: uint32(zone)}
}

func portOf(sa unix.Sockaddr) uint16 {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port)
	case *unix.SockaddrInet6:
		return uint16(sa.Port)
	}
	return 0
}

// InterfaceAddrs returns the addresses of a network interface, without those
// that only work on one link.
func InterfaceAddrs(name string) ([]netip.Addr, error) {
	index, err := interfaceIndex(name)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	table, err := syscall.NetlinkRIB(unix.RTM_GETADDR, unix.AF_UNSPEC)
	if err != nil {
		return nil, wrap("netlink RTM_GETADDR", err)
	}
	msgs, err := syscall.ParseNetlinkMessage(table)
	if err != nil {
		return nil, wrap("netlink RTM_GETADDR", err)
	}
	var addrs []netip.Addr
	for i := range msgs {
		if a, ok := addressIn(&msgs[i], index); ok && !a.IsLinkLocalUnicast() {
			addrs = append(addrs, a)
		}
	}
	return addrs, nil
}

// addressIn takes the address of one interface out of an RTM_NEWADDR message.
// IFA_LOCAL is this host's end of a link between two.
func addressIn(m *syscall.NetlinkMessage, index uint32) (addr netip.Addr, ok bool) {
	const ifAddrMsgBytes = 8
	if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < ifAddrMsgBytes ||
		binary.NativeEndian.Uint32(m.Data[4:]) != index {
		return addr, false
	}
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil {
		return addr, false
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFA_LOCAL || a.Attr.Type == unix.IFA_ADDRESS && !ok {
			addr, ok = netip.AddrFromSlice(a.Value)
		}
	}
	return addr, ok
}

func interfaceIndex(name string) (uint32, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, wrap("socket", err)
	}
	fd := newFD(raw)
	err = unix.IoctlIfreq(raw, unix.SIOCGIFINDEX, req)
	return req.Uint32(), errors.Join(wrap("ioctl SIOCGIFINDEX", err), fd.Close())
}
