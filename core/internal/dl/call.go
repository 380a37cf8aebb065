package dl

import (
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Func is the address of a C function; 0 is none.
type Func uintptr

// Call calls the function with integers and addresses. It panics on Func 0.
// An argument of the form uintptr(unsafe.Pointer(p)) keeps p's object alive
// and in its place during the call. The calling goroutine's thread is held
// until C returns.
//
//go:uintptrescapes
func (f Func) Call(args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	return r
}

// Hot is a Func for the hot path: a call allocates nothing, so every address
// must be outside the Go heap. One goroutine at a time.
type Hot struct {
	fn   uintptr
	args [3]uintptr
	all  [MaxHotArgs]uintptr
}

// MaxHotArgs is what CallAll takes, enough for any function that is called
// once per operation.
const MaxHotArgs = 11

// Hot prepares the function for calls that allocate nothing.
func (f Func) Hot() *Hot { return &Hot{fn: uintptr(f)} }

// Call calls the function. One that takes fewer arguments ignores the others.
func (h *Hot) Call(a, b, c uintptr) uintptr {
	// The arguments lie in h because a list made for the call would be
	// allocated each time.
	h.args = [3]uintptr{a, b, c}
	r, _, _ := purego.SyscallN(h.fn, h.args[:]...)
	return r
}

// CallAll calls the function with eleven arguments.
func (h *Hot) CallAll(args *[MaxHotArgs]uintptr) uintptr {
	h.all = *args
	r, _, _ := purego.SyscallN(h.fn, h.all[:]...)
	return r
}

// CallErrno is Call for functions that report by errno: the second result is
// errno as the function left it, which says something only if the first one
// tells of a failure.
//
//go:uintptrescapes
func (f Func) CallErrno(args ...uintptr) (uintptr, syscall.Errno) {
	location := errnoLocation()
	// errno belongs to the thread, and between two calls a goroutine may move.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, _, _ := purego.SyscallN(uintptr(f), args...)
	errno := At[int32](location.Call())
	return r, syscall.Errno(*errno)
}

// errnoLocation is the C library's function that says where errno is.
var errnoLocation = sync.OnceValue(func() Func {
	addr, err := purego.Dlsym(purego.RTLD_DEFAULT, "__errno_location")
	if err != nil {
		panic(err) // a C library without it is none that Go links with
	}
	return Func(addr)
})

// At returns the value of type T at a C address, which must not be in the Go
// heap. It is valid as long as C keeps it.
func At[T any](addr uintptr) *T {
	return *(**T)(unsafe.Pointer(&addr))
}

// String copies the C string at an address.
func String(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	n := 0
	for *At[byte](addr + uintptr(n)) != 0 {
		n++
	}
	return string(unsafe.Slice(At[byte](addr), n))
}
