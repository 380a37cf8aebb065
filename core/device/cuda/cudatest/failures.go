package cudatest

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// FailAfter makes a call of the emulator fail once, after that many successful ones.
func (d *Driver) FailAfter(call string, n int, code libcuda.Result) {
	name := append([]byte(call), 0)
	d.emulated(d.fail).Call(uintptr(unsafe.Pointer(&name[0])), uintptr(n), uintptr(code))
}

// BreakAfter does the same, and breaks the device, as an error of a kernel does: what
// runs is killed, and calls give the code until the last reference to the context
// is gone, but for those that ask nothing of the context.
func (d *Driver) BreakAfter(call string, n int, code libcuda.Result) {
	name := append([]byte(call), 0)
	d.emulated(d.breaks).Call(uintptr(unsafe.Pointer(&name[0])), uintptr(n), uintptr(code), 0)
}

// BreakBehind is BreakAfter where the call itself succeeds, as a launch does before its
// kernel fails: what it has launched does not run, and later calls return the error.
func (d *Driver) BreakBehind(call string, n int, code libcuda.Result) {
	name := append([]byte(call), 0)
	d.emulated(d.breaks).Call(uintptr(unsafe.Pointer(&name[0])), uintptr(n), uintptr(code), 1)
}

// Relent ends all failures, and reports whether one was still due.
func (d *Driver) Relent() bool { return d.emulated(d.relents).Call() != 0 }

// Reclaim frees what is left, as the end of a process does.
func (d *Driver) Reclaim() { d.emulated(d.reclaims).Call() }

// Raw is a function of the emulator as it is called from C.
func (d *Driver) Raw(t testing.TB, symbol string) dl.Func {
	t.Helper()
	lib, err := dl.Open(d.path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := lib.Lookup(symbol)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Calls is how often a function of the emulator was called so far.
func (d *Driver) Calls(call string) int {
	name := append([]byte(call), 0)
	return int(d.emulated(d.calls).Call(uintptr(unsafe.Pointer(&name[0]))))
}

// Called are the functions that were called so far.
func (d *Driver) Called() []string {
	return strings.Fields(dl.String(d.emulated(d.called).Call()))
}
