package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// TestFailuresOfMemoryByIPC has every call fail of a life with memory by IPC handles:
// own memory that is named and shared, and memory that another process has.
func TestFailuresOfMemoryByIPC(t *testing.T) {
	emu := emulate(t)
	handle := anothersMemory(t)
	failed := cudatest.Sweep{Short: testing.Short(), Life: func() error { return liveByIPC(emu, &handle) }, Times: 80}.Run(t, emu)
	require.Subset(t, failed, []string{
		"cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemGetAddressRange_v2",
		"cuMemAlloc_v2", "cuMemFree_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2",
	})
}

// anothersMemory is the emulator's handle (process, descriptor, size) of a page of
// another process, which holds it open as its descriptor 3 and does nothing else.
func anothersMemory(t *testing.T) (h libcuda.IPCHandle) {
	path := filepath.Join(t.TempDir(), "page")
	require.NoError(t, os.WriteFile(path, append([]byte{42}, make([]byte, 4095)...), 0o600))
	page, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, page.Close()) }()
	other := exec.Command("sleep", "600")
	other.ExtraFiles = []*os.File{page}
	require.NoError(t, other.Start())
	t.Cleanup(func() { _, _ = other.Process.Kill(), other.Wait() })
	binary.NativeEndian.PutUint32(h[0:], uint32(other.Process.Pid))
	binary.NativeEndian.PutUint32(h[4:], 3)
	binary.NativeEndian.PutUint64(h[8:], 4096)
	return h
}

// liveByIPC is one life, up to the first error; it frees all that it has.
func liveByIPC(emu *cudatest.Driver, handle *libcuda.IPCHandle) error {
	d, err := Open(emu.Library, 0, []byte("kernels\x00"))
	if err != nil {
		return err
	}
	d.ShareByIPC()
	var all []*Memory
	err = shareByIPC(d, handle, &all)
	errs := []error{err}
	for range 2 { // what a call could not begin to free it frees again
		for _, m := range all {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(append(errs, d.Close(), d.Close(), d.Close())...)
}

func shareByIPC(d *Device, handle *libcuda.IPCHandle, all *[]*Memory) error {
	own, err := d.Alloc(4096)
	if err != nil {
		return err
	}
	*all = append(*all, own)
	if own.ByDescriptor() {
		return errors.New("the memory is not shared by IPC handles")
	}
	if _, err := own.IPCHandle(); err != nil {
		return err
	}
	shared, err := own.Share(d)
	if err != nil {
		return err
	}
	*all = append(*all, shared)
	others, err := d.OpenIPC(handle)
	if err != nil {
		return err
	}
	*all = append(*all, others)
	if got := cudatest.Slice[byte](others.Address(), 1)[0]; got != 42 || others.NumBytes() != 4096 {
		return fmt.Errorf("%d bytes of the other's, which begin with %d", others.NumBytes(), got)
	}
	return nil
}
