//go:build linux

package sys

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/moewire/moewire/core/internal/testenv"
)

func mapped(t *testing.T, fd *FD, n int64) *Mapping {
	t.Helper()
	t.Cleanup(func() { fd.Close() })
	if err := Grow(fd, n); err != nil {
		t.Fatal(err)
	}
	m, err := Map(fd, 0, n)
	if errors.Is(err, syscall.ENOMEM) {
		testenv.Lacking(t, "hugepages", err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unmap() })
	return m
}

// A length that is no whole number of huge pages, to the last byte.
func TestHugeMemfd(t *testing.T) {
	fd, err := NewHugeMemfd("test")
	if err != nil {
		testenv.Lacking(t, "hugepages", err.Error())
	}
	before := Stats().Mappings
	m := mapped(t, fd, HugePageBytes+4096)
	data := m.Bytes()
	if len(data) != HugePageBytes+4096 {
		t.Fatalf("%d bytes", len(data))
	}
	Prefault(data)
	data[len(data)-1] = 1
	if size, err := Size(fd); size != 2*HugePageBytes {
		t.Errorf("the file has %d bytes, %v", size, err)
	}
	if err := m.Unmap(); err != nil || Stats().Mappings != before {
		t.Errorf("unmap: %v, %d mappings, had %d", err, Stats().Mappings, before)
	}
}

// Huge pages that were not reserved are an error at once, no fault later.
func TestTooManyHugePages(t *testing.T) {
	fd, err := NewHugeMemfd("test")
	if err != nil {
		testenv.Lacking(t, "hugepages", err.Error())
	}
	defer fd.Close()
	const tooMuch = 1 << 45
	if err := Grow(fd, tooMuch); err != nil {
		t.Fatal(err)
	}
	if m, err := Map(fd, 0, tooMuch); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("mapping 2^45 bytes of huge pages gave %v, %v", m, err)
	}
}

func TestAdviseHuge(t *testing.T) {
	m := mapped(t, must(NewMemfd("test"))(t), 4*HugePageBytes)
	if err := AdviseHuge(m); err != nil && !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	m.Bytes()[0] = 1
}

func TestPreferNode(t *testing.T) {
	m := mapped(t, must(NewMemfd("test"))(t), 1<<20)
	node := must(CurrentNode())(t)
	if err := PreferNode(m, node); err != nil {
		testenv.Lacking(t, "numa", err.Error())
	}
	policy, mask := 0, [maxNodes / 64]uint64{}
	const byAddress = 2
	_, _, errno := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&policy)), uintptr(unsafe.Pointer(&mask)),
		maxNodes, uintptr(unsafe.Pointer(&m.data[0])), byAddress, 0)
	if errors.Is(errno, unix.ENOSYS) {
		testenv.Lacking(t, "numa", "the kernel knows no nodes")
	}
	if errno != 0 || policy != mpolPreferred || mask[node/64]>>(node%64)&1 != 1 {
		t.Errorf("policy %d for nodes %#x, %v; want %d for node %d", policy, mask[0], errno, mpolPreferred, node)
	}
	Prefault(m.Bytes())
}
