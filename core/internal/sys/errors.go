//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/origin"
)

// Sentinels for errors.Is.
var (
	// ErrTimeout ends a wait whose deadline has passed. It is
	// os.ErrDeadlineExceeded.
	ErrTimeout = os.ErrDeadlineExceeded
	// ErrNoListener means that no socket listens under the dialled name.
	ErrNoListener error = unix.ECONNREFUSED
	// ErrAgain means that the call would block.
	ErrAgain error = unix.EAGAIN
	// ErrTooLarge means that a message did not fit what was expected of it.
	ErrTooLarge = errors.New("message or descriptor list too large")
	// ErrNotDelivered means that the kernel has kept a descriptor back that a
	// message carried.
	ErrNotDelivered = errors.New("a descriptor was not delivered: this process had none left (ulimit -n), or a security policy forbids it")
)

// wrap adds the call's name to a kernel error, and to a shortage what is used up;
// nil stays nil.
func wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	return origin.Mark(fmt.Errorf("%s: %w", call, explain(call, err)))
}

// retry repeats a call that a signal interrupted. Go's runtime sends signals
// to its own threads, so every blocking call sees EINTR sooner or later.
func retry(f func() error) error {
	for {
		if err := f(); err != unix.EINTR {
			return err
		}
	}
}

// fileError names a file in an error of package os, and the limit of a shortage.
func fileError(path string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return wrap("open "+path, errno)
	}
	return fmt.Errorf("%s: %w", path, err)
}
