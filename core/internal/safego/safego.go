// Package safego is the one place where this library starts goroutines. A panic that a
// goroutine does not recover would end the host process (a Python interpreter), so every
// goroutine recovers and reports.
package safego

import (
	"fmt"

	"github.com/moewire/moewire/core/origin"
)

// PanicError is what a recovered panic becomes.
type PanicError struct {
	// Name says which goroutine panicked.
	Name string
	// Value is what was passed to panic.
	Value any
}

// Error names the goroutine and the panic's value, without the stack.
func (e *PanicError) Error() string {
	return fmt.Sprintf("goroutine %q panicked: %v", e.Name, e.Value)
}

// Unwrap gives the panic's value when it was an error, else nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Go runs f on a new goroutine. If f panics, onPanic (may be nil) is called once on that
// goroutine with an error that is a *PanicError. A panic inside onPanic is swallowed,
// because nothing is left that could report it.
func Go(name string, f func(), onPanic func(err error)) {
	go run(name, f, onPanic)
}

func run(name string, f func(), onPanic func(err error)) {
	defer func() { _ = recover() }()
	if err := Call(name, f); err != nil && onPanic != nil {
		onPanic(err)
	}
}

// Call runs f on the calling goroutine and returns its panic, if any, as a
// *PanicError that knows its stack (origin.Of).
func Call(name string, f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = origin.MarkPanic(&PanicError{Name: name, Value: v})
		}
	}()
	f()
	return nil
}
