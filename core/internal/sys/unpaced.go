//go:build linux

package sys

import (
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// unpacedControl is the congestion control of connections within this host. There is no network whose room they would
// take from others, and what measures a path and paces what it sends (bbr) takes a third of the processor time of
// such a connection. Every kernel has this one and allows it to everybody.
const unpacedControl = "reno"

// unpace takes the pacing from a socket. Where a connection is there already the kernel still paces it, at a rate of
// the other control. A kernel that refuses leaves it as it is.
func unpace(fd int) {
	_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpacedControl)
}

// unpaceDial is a Control of net.Dialer and net.ListenConfig. It knows an address of this host by its being a
// loopback one.
func unpaceDial(_, addr string, c syscall.RawConn) error {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || !at.Addr().Unmap().IsLoopback() {
		return nil
	}
	return c.Control(func(fd uintptr) { unpace(int(fd)) })
}

// unpaceWithin takes the pacing from a connection with one address at both ends.
func unpaceWithin(nc *net.TCPConn, raw int) {
	local, remote := ipOf(nc.LocalAddr()), ipOf(nc.RemoteAddr())
	if local.IsValid() && local == remote {
		unpace(raw)
	}
}

func ipOf(a net.Addr) netip.Addr {
	if tcp, is := a.(*net.TCPAddr); is {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
