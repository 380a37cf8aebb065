//go:build amd64

package chaos

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const canHold = true

// holdSockets makes a child of this process as clone by number does: no fork handler runs, and
// the child keeps the sockets of this process open, beyond its end if need be.
func holdSockets() error {
	others, err := noSockets()
	if err != nil {
		return err
	}
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("clone: %w", errno)
	}
	if pid == 0 {
		hold(others)
	}
	return nil
}

// hold never returns. The child has one thread, and no Go runtime: it may do nothing but
// system calls. The pipes to the parent are not for it to keep.
//
//go:nosplit
//go:norace
func hold(others []int) {
	for _, fd := range others {
		syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(fd), 0, 0)
	}
	syscall.RawSyscall(syscall.SYS_POLL, 0, 0, uintptr(holdFor.Milliseconds()))
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// noSockets are the descriptors of this process that are none.
func noSockets() (fds []int, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		target, gone := os.Readlink("/proc/self/fd/" + e.Name())
		if fd, wrong := strconv.Atoi(e.Name()); gone == nil && wrong == nil && !strings.HasPrefix(target, "socket:") {
			fds = append(fds, fd)
		}
	}
	return fds, err
}
