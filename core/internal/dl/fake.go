package dl

import (
	"errors"
	"syscall"

	"github.com/ebitengine/purego"
)

// errNotFaked is what a fake's missing symbols give.
var errNotFaked = errors.New("not among the fake's functions")

// Fake makes a library of Go functions, for tests: they are reached through
// real C addresses, so all but the library itself is what runs in production.
// Each function takes and returns integers or pointers, one result at most.
// Addresses are never freed and a process has about 2000, so make one fake for
// all tests of a package.
func Fake(functions map[string]any) *Library {
	table := make(map[string]uintptr, len(functions))
	for name, f := range functions {
		table[name] = purego.NewCallback(f)
	}
	find := func(symbol string) (uintptr, error) {
		if addr, ok := table[symbol]; ok {
			return addr, nil
		}
		return 0, errNotFaked
	}
	return &Library{name: "fake", lookup: find}
}

// SetErrno sets errno, as a C function does that fails. Only for functions of
// a fake, while they are called.
func SetErrno(errno syscall.Errno) {
	*At[int32](errnoLocation().Call()) = int32(errno)
}
