package cudatest

import (
	"testing"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// Slice is n values of memory that tests see: of the emulated device, which is
// this process's, or what Shown has made.
func Slice[T any](address uint64, n int) []T { return unsafe.Slice(dl.At[T](uintptr(address)), n) }

// Read gives n values of device memory: where they are, or a copy. The context
// is current, and the device has written them.
func Read[T any](t testing.TB, d *Driver, address uint64, n int) []T {
	t.Helper()
	if !OnDevice() || n == 0 {
		return Slice[T](address, n)
	}
	values := make([]T, n)
	numBytes := uint64(n) * uint64(unsafe.Sizeof(values[0]))
	if err := d.CopyToHostAsync(uintptr(unsafe.Pointer(&values[0])), libcuda.DevicePtr(address), numBytes, 0); err != nil {
		t.Fatal(err)
	}
	if err := d.StreamSynchronize(0); err != nil {
		t.Fatal(err)
	}
	return values
}

// Shown allocates zeroed memory that the device and this process see at one
// address: pinned memory of the host. The context is current, as when it is freed.
func (d *Driver) Shown(numBytes uint64) (address uint64, free func() error, err error) {
	p, err := d.HostAlloc(numBytes, libcuda.HostAllocPortable|libcuda.HostAllocDeviceMap)
	if err != nil {
		return 0, nil, err
	}
	free = func() error { return d.HostFree(p) }
	at, err := d.HostDevicePtr(p)
	if err != nil {
		return 0, free, err
	}
	clear(Slice[byte](uint64(p), int(numBytes)))
	return uint64(at), free, nil
}
