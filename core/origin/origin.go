// Package origin remembers where an error began: at a native call that failed, if
// MOEWIRE_DEBUG is 1, and at a panic that was recovered, always.
package origin

import (
	"fmt"
	"os"

	"github.com/pkg/errors"
)

var debugging = os.Getenv("MOEWIRE_DEBUG") == "1"

// Mark gives err the stack of its caller when MOEWIRE_DEBUG was 1 as the process began. Otherwise
// it gives err itself, and allocates nothing. A nil error stays nil.
func Mark(err error) error {
	if !debugging {
		return err
	}
	return errors.WithStack(err)
}

// MarkPanic gives an error the stack of the panic that it was made of. Call it in the deferred
// function that has recovered: the frames that panicked are still there.
func MarkPanic(err error) error { return errors.WithStack(err) }

// Of returns the stack that err, or an error that it wraps, was given first: a function and
// its file and line per frame, the innermost first. Without one it is empty.
func Of(err error) string {
	var first interface{ StackTrace() errors.StackTrace }
	for rest := err; errors.As(rest, &first); rest = errors.Unwrap(first.(error)) {
		err = rest
	}
	if first == nil {
		return ""
	}
	return fmt.Sprintf("%+v", first.StackTrace())
}
