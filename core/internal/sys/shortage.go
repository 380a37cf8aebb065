//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// shortage is an error number that says that something is used up, with the name
// of what it is and the limit: the kernel's own text says neither.
type shortage struct {
	errno syscall.Errno
	limit string
}

func (s *shortage) Error() string { return s.errno.Error() + ", " + s.limit }

func (s *shortage) Unwrap() error { return s.errno }

// shortages says for each error number of a shortage what is used up.
var shortages = map[syscall.Errno]func(call string) string{
	unix.EMFILE: func(string) string {
		return fmt.Sprintf("limit %s (RLIMIT_NOFILE of this process: ulimit -n)", limitText(unix.RLIMIT_NOFILE))
	},
	unix.ENFILE: func(string) string { return fmt.Sprintf("limit %s (fs.file-max of this host)", hostLimits().files) },
	unix.ENOMEM: memoryLimits,
	unix.ENOSPC: spaceLimits,
	unix.ENOBUFS: func(string) string {
		return fmt.Sprintf("the kernel has no memory for sockets: limits %s bytes of messages about one (net.core.optmem_max), %s pages of all of TCP (net.ipv4.tcp_mem)",
			hostLimits().socketMessages, hostLimits().tcpPages)
	},
}

func memoryLimits(call string) string {
	if call != "mmap" && call != "mremap" {
		return "the kernel, or the control group of this process, has no memory left (memory.max)"
	}
	host := "memory of the host and of the control group (memory.max)"
	if hostLimits().overcommit == "2" {
		host = promised + ", " + host
	}
	return fmt.Sprintf("limits: address space %s (RLIMIT_AS of this process: ulimit -v), %s mappings (vm.max_map_count), %s",
		limitText(unix.RLIMIT_AS), hostLimits().mappings, host)
}

// promised names the bound of a host that promises no more memory than it has.
const promised = "what the host may promise (vm.overcommit_memory is 2: CommitLimit in /proc/meminfo)"

func spaceLimits(call string) string {
	if strings.HasPrefix(call, "epoll_ctl") {
		return fmt.Sprintf("limit %s watched descriptors of this user (fs.epoll.max_user_watches)", hostLimits().watches)
	}
	return fmt.Sprintf("memory files have no memory left: of the host, where %s or of the control group (memory.max); the size of /dev/shm does not matter",
		freeMemory())
}

// freeMemory takes no descriptor.
func freeMemory() string {
	var s unix.Sysinfo_t
	if err := unix.Sysinfo(&s); err != nil {
		return "an unknown amount is free,"
	}
	unit := uint64(max(s.Unit, 1))
	return fmt.Sprintf("%d of %d bytes, and %d bytes of swap space, are free,", uint64(s.Freeram)*unit, uint64(s.Totalram)*unit, uint64(s.Freeswap)*unit)
}

// IsShortage reports whether an error says that descriptors, memory or space are
// used up: it says nothing of what the call was about.
func IsShortage(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) && shortages[errno] != nil
}

// explain names the resource and the limit of a shortage; other errors stay.
func explain(call string, err error) error {
	errno, ok := err.(syscall.Errno)
	if errno == unix.EFAULT && hostLimits().overcommit == "2" {
		return &shortage{errno, "or no memory is left for what lies there: " + promised}
	}
	if !ok || shortages[errno] == nil {
		return err
	}
	return &shortage{errno, shortages[errno](call)}
}

func limitText(resource int) string {
	var lim unix.Rlimit
	if err := unix.Getrlimit(resource, &lim); err != nil {
		return "unknown"
	}
	if lim.Cur == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(lim.Cur, 10)
}

type limitsOfHost struct{ files, mappings, watches, overcommit, socketMessages, tcpPages string }

// hostLimits are read once, before anything is short: to read them takes a
// descriptor.
var hostLimits = sync.OnceValue(func() (l limitsOfHost) {
	l.files = readLimit("/proc/sys/fs/file-max")
	l.mappings = readLimit("/proc/sys/vm/max_map_count")
	l.overcommit = readLimit("/proc/sys/vm/overcommit_memory")
	l.watches = readLimit("/proc/sys/fs/epoll/max_user_watches")
	l.socketMessages = readLimit("/proc/sys/net/core/optmem_max")
	tcp := strings.Fields(readLimit("/proc/sys/net/ipv4/tcp_mem"))
	l.tcpPages = tcp[len(tcp)-1] // the others are where the kernel begins to save
	return l
})

func readLimit(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	if limit := strings.TrimSpace(string(text)); limit != "" {
		return limit
	}
	return "unknown"
}

// OpenFiles is the limit of this process's descriptors.
type OpenFiles struct {
	// Before is the soft limit that RaiseOpenFiles has found; Soft is the one
	// that holds now.
	Before, Soft, Hard uint64
}

// maxOpenFiles bounds what RaiseOpenFiles asks for: children inherit the limit,
// and some programs close every descriptor up to it.
const maxOpenFiles = 1 << 20

// RaiseOpenFiles raises the soft limit of this process's descriptors to the hard
// one, at most 2^20: what it opens for a group is more than the usual limit
// allows. It does so once; later calls say what it has found.
var RaiseOpenFiles = sync.OnceValues(raiseOpenFiles)

func raiseOpenFiles() (OpenFiles, error) {
	hostLimits()
	_, _ = overflowUser() // while there are descriptors; what asks for it sees the error
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return OpenFiles{}, wrap("getrlimit", err)
	}
	found := OpenFiles{Before: lim.Cur, Soft: lim.Cur, Hard: lim.Max}
	wished := min(lim.Max, maxOpenFiles)
	if lim.Cur >= wished {
		return found, nil
	}
	lim.Cur = wished
	// Package syscall, not unix: what it starts gets the limit as it is.
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: lim.Cur, Max: lim.Max}); err != nil {
		return found, wrap("setrlimit", err)
	}
	found.Soft = wished
	return found, nil
}
