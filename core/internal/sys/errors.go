//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Sentinels for errors.Is.
var (
	// ErrTimeout ends a wait whose deadline has passed. It is
	// os.ErrDeadlineExceeded.
	ErrTimeout = os.ErrDeadlineExceeded
	// ErrNoListener means that nobody listens under the dialled name.
	ErrNoListener error = unix.ECONNREFUSED
	// ErrAgain means that the call would block.
	ErrAgain error = unix.EAGAIN
	// ErrTooLarge means that a message did not fit what was expected of it.
	ErrTooLarge = errors.New("message or descriptor list too large")
)

// wrap adds the call's name to a kernel error; nil stays nil.
func wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", call, err)
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
