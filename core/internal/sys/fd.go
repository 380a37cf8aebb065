//go:build linux

package sys

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FD owns one file descriptor, always close-on-exec, and closed in a forked
// child by the library's fork handler (see ForkTable). Close may be called
// from any goroutine and more than once; the caller sees to it that no other
// call uses the descriptor at that moment.
type FD struct {
	*descriptor
}

// descriptor is kept apart from FD so that the leak check may look at it
// after the FD itself has become garbage.
type descriptor struct {
	raw atomic.Int64
}

// newFD takes ownership of raw.
func newFD(raw int) *FD {
	f := &FD{&descriptor{}}
	f.raw.Store(int64(raw))
	noteFD(raw)
	openFDs.Add(1)
	runtime.AddCleanup(f, countLeak, f.descriptor)
	return f
}

// Raw returns the descriptor, or -1 after Close.
func (f *FD) Raw() int { return int(f.raw.Load()) }

// Close closes the descriptor. Idempotent; a nil FD is closed.
func (f *FD) Close() error {
	if f == nil {
		return nil
	}
	raw := int(f.raw.Swap(-1))
	if raw < 0 {
		return nil
	}
	openFDs.Add(-1)
	return wrap("close", closeNoted(raw, unix.Close))
}

// Disown gives the descriptor away, to code outside the library that closes it: the number, or -1 after
// Close. A forked child keeps it.
func (f *FD) Disown() int {
	raw := int(f.raw.Swap(-1))
	if raw >= 0 {
		openFDs.Add(-1)
		dropFD(raw)
	}
	return raw
}

// Dup returns a second descriptor of the same open file.
func Dup(f *FD) (*FD, error) {
	if err := injected("fcntl F_DUPFD_CLOEXEC"); err != nil {
		return nil, wrap("fcntl F_DUPFD_CLOEXEC", err)
	}
	raw, err := unix.FcntlInt(uintptr(f.Raw()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("fcntl F_DUPFD_CLOEXEC", err)
	}
	return newFD(raw), nil
}

// countLeak runs after an FD has become garbage. It reports a descriptor that was not
// closed and does not close it: that would hide the mistake.
func countLeak(d *descriptor) {
	if d.raw.Load() >= 0 {
		leakedFDs.Add(1)
	}
}

// Duplicate returns a descriptor of its own for raw, which belongs to other code.
func Duplicate(raw int) (*FD, error) {
	own, err := unix.FcntlInt(uintptr(raw), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, wrap("fcntl F_DUPFD_CLOEXEC", err)
	}
	return newFD(own), nil
}

// Own takes over a descriptor that a library has made for this process.
func Own(raw int) *FD {
	unix.CloseOnExec(raw)
	return newFD(raw)
}
