//go:build linux

package sys

import "sync/atomic"

// fault is what tests put in front of the kernel; nil in the product.
var fault atomic.Pointer[func(call string) error]

// InjectFaults lets a test make system calls fail. Before each call that makes a
// descriptor, grows a file or maps memory, f gets the name that the call has in errors
// ("accept4", "mmap"). An error that f returns takes the call's place. The calls that
// move bytes are left alone, and so cost nothing. f may be called by any goroutine. Only
// tests call this; stop ends it.
func InjectFaults(f func(call string) error) (stop func()) {
	fault.Store(&f)
	return func() { fault.Store(nil) }
}

// FailCall is InjectFaults for one call, which fails with err each time.
func FailCall(name string, err error) (stop func()) {
	return InjectFaults(func(call string) error {
		if call == name {
			return err
		}
		return nil
	})
}

// injected is the error that a test wants of a call.
func injected(call string) error {
	if f := fault.Load(); f != nil {
		return (*f)(call)
	}
	return nil
}
