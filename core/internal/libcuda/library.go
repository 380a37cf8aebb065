package libcuda

import (
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
)

// Soname is the driver's name. It comes with the driver and is never bundled.
// (libcuda.so, without the number, is also the name of a stub that fails.)
const Soname = "libcuda.so.1"

// Library is the driver, opened. Safe for concurrent use, as the driver is.
type Library struct {
	name string
	call functions
}

// Load opens the driver: path if it is not empty, else by its soname. Without
// a driver the error is a dl.ErrNoLibrary that says what was tried. Nothing
// is initialised: see Init.
func Load(path string) (*Library, error) {
	if path == "" {
		path = Soname
	}
	lib, err := dl.Open(path)
	if err != nil {
		return nil, err
	}
	return New(lib)
}

// New finds the functions of an open library.
func New(lib *dl.Library) (*Library, error) {
	l := &Library{name: lib.Name()}
	if err := lib.LookupAll(l.call.required()); err != nil {
		return nil, fmt.Errorf("the driver is too old: %w", err)
	}
	for symbol, f := range l.call.optional() {
		*f, _ = lib.Lookup(symbol)
	}
	return l, nil
}

// Name is the file or soname that was opened.
func (l *Library) Name() string { return l.name }

// Init initialises the driver in this process. It makes no context. A process
// that was forked from one that had initialised it cannot use it.
func (l *Library) Init() error { return l.check("cuInit", l.call.init.Call(0)) }

// DriverVersion is the CUDA version of the driver: 1000 major + 10 minor.
func (l *Library) DriverVersion() (int, error) {
	v := new(int32)
	err := l.check("cuDriverGetVersion", l.call.driverGetVersion.Call(uintptr(unsafe.Pointer(v))))
	return int(*v), err
}
