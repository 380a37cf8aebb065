//go:build linux

package sys

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Futex operations of the kernel; package unix does not name them. Without
// the PRIVATE flag they work across processes.
const (
	futexWait = 0
	futexWake = 1
)

// FutexWait sleeps while the low 32 bits of *w equal want, for at most d. It
// returns nil when it was woken, when the word was another one, on a signal
// and on time-out alike: the caller looks again in any case. It releases the
// scheduler's processor while it sleeps and allocates nothing.
func FutexWait(w *atomic.Uint64, want uint32, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	ts := unix.NsecToTimespec(int64(d))
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWait,
		uintptr(want), uintptr(unsafe.Pointer(&ts)), 0, 0)
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR, unix.ETIMEDOUT:
		return nil
	}
	return wrap("futex wait", errno)
}

// FutexWakeAll wakes every thread that sleeps on w, in all processes. It never sleeps,
// and allocates nothing unless it fails.
func FutexWakeAll(w *atomic.Uint64) error {
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(w)), futexWake, math.MaxInt32, 0, 0, 0)
	if errno != 0 {
		return wrap("futex wake", errno)
	}
	return nil
}

// Yield gives this thread's core to another runnable thread.
func Yield() {
	_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
