//go:build linux

package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

var pageSize = os.Getpagesize()

// PageSize is the size of a page in bytes, a power of two.
func PageSize() int { return pageSize }

// Getpid is the id of this process in its own pid namespace.
func Getpid() int { return unix.Getpid() }

// Geteuid is the user that this process has the rights of.
func Geteuid() int { return unix.Geteuid() }

// MayRead reports whether this process may open a file for reading.
func MayRead(path string) bool {
	return retry(func() error { return unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK, unix.AT_EACCESS) }) == nil
}

// MemlockLimitBytes is how much memory this process may lock (soft limit);
// unlimited is the largest uint64.
func MemlockLimitBytes() (uint64, error) {
	var lim unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim)
	return lim.Cur, wrap("getrlimit", err)
}

// CPUs are the processors that this process may run on now.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, wrap("sched_getaffinity", err)
	}
	cpus := make([]int, 0, set.Count())
	for cpu := 0; len(cpus) < cap(cpus); cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
