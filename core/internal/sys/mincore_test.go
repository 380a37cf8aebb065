//go:build linux

package sys

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mincore fills one byte per page: 1 when it is present.
func mincore(t *testing.T, data, present []byte) {
	t.Helper()
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(&present[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
}
