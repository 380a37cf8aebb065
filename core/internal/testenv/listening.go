package testenv

import (
	"os"
	"strconv"
	"syscall"
	"testing"
)

// Listening are the TCP ports at which this process listens, by IPv4.
func Listening(t testing.TB) map[uint16]bool {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	ports := map[uint16]bool{}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if on, err := syscall.GetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_ACCEPTCONN); err != nil || on == 0 {
			continue
		}
		own, err := syscall.Getsockname(fd)
		if at, ok := own.(*syscall.SockaddrInet4); ok && err == nil {
			ports[uint16(at.Port)] = true
		}
	}
	return ports
}
