package domain

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/moewire/moewire/core/transport"
)

// connecting is why a rendezvous failed, whichever carriers the error went through.
type connecting struct{ err error }

func (c connecting) Error() string { return "connect: " + c.err.Error() }
func (c connecting) Unwrap() error { return c.err }

// Connecting says of an error that it ended a rendezvous, once.
func Connecting(err error) error {
	var already connecting
	if err == nil || errors.As(err, &already) {
		return err
	}
	return connecting{err}
}

const gaveUp = "gave up connecting: "

// GaveUp is the error of a rank that has told this one why it gives up.
func GaveUp(packed []byte) error { return fmt.Errorf(gaveUp+"%w", UnpackReason(packed)) }

// sharedKinds are the kinds of failure that all ranks of a rendezvous report as such: a
// rank that is told of a failure says the same as the rank that has found it, whichever
// comes first. Their numbers in a message count from 1.
var sharedKinds = [...]error{transport.ErrMismatch, os.ErrDeadlineExceeded, ErrExited}

// reason is why another rank gave up.
type reason struct {
	kind error // of sharedKinds, or nil
	text string
}

func (r reason) Error() string { return r.text }
func (r reason) Unwrap() error { return r.kind }

// PackReason is what a rank that gives up tells the others: a byte that is the number of
// err's kind, 0 if it has none, then err's text. Of a failure that it was told itself it
// tells the cause alone, not the rank that told it.
func PackReason(err error) []byte {
	var number byte
	for i, kind := range sharedKinds {
		if errors.Is(err, kind) {
			number = byte(i + 1)
			break
		}
	}
	text := err.Error()
	if at := strings.LastIndex(text, gaveUp); at >= 0 {
		text = text[at+len(gaveUp):]
	}
	return append([]byte{number}, text...)
}

// UnpackReason is the error that another rank has told, of the same kind. A number
// that it does not know is taken for no kind.
func UnpackReason(b []byte) error {
	if len(b) == 0 {
		return reason{text: "it did not say why"}
	}
	r := reason{text: string(b[1:])}
	if n := int(b[0]); n >= 1 && n <= len(sharedKinds) {
		r.kind = sharedKinds[n-1]
	}
	return r
}
