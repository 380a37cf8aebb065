//go:build linux

package sys

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestFDCloseIsIdempotent(t *testing.T) {
	before := Stats()
	fd := must(NewEvent())(t)
	if got := Stats().OpenFDs; got != before.OpenFDs+1 {
		t.Errorf("%d open descriptors, had %d", got, before.OpenFDs)
	}
	raw := fd.Raw()
	for range 2 {
		if err := fd.Close(); err != nil {
			t.Error(err)
		}
	}
	if fd.Raw() != -1 || Stats().OpenFDs != before.OpenFDs {
		t.Errorf("after Close: %d, %+v", fd.Raw(), Stats())
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/self/fd/%d", raw)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("descriptor %d is still open: %v", raw, err)
	}
	if err := (*FD)(nil).Close(); err != nil {
		t.Error(err)
	}
}

func TestLeakedFDIsReported(t *testing.T) {
	before := Stats().LeakedFDs
	raw := func() int { return must(NewEvent())(t).Raw() }()
	for range 200 {
		if runtime.GC(); Stats().LeakedFDs == before+1 {
			openFDs.Add(-1)
			leakedFDs.Add(-1)
			_ = syscall.Close(raw)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("a leaked descriptor was not reported")
}

func TestErrorsNameTheCall(t *testing.T) {
	_, err := OpenPidfd(1 << 30)
	if !errors.Is(err, syscall.ESRCH) && !errors.Is(err, syscall.EINVAL) || err.Error()[:10] != "pidfd_open" {
		t.Errorf("got %v", err)
	}
}

func TestMemfdIsSharedAndGrows(t *testing.T) {
	fd := must(NewMemfd("test"))(t)
	defer fd.Close()
	page := int64(PageSize())
	if err := Grow(fd, page); err != nil {
		t.Fatal(err)
	}
	a, b := must(Map(fd, 0, page))(t), must(Map(fd, 0, page))(t)
	Prefault(a.Bytes())
	Word(a.Bytes(), 8).Store(77)
	if Word(b.Bytes(), 8).Load() != 77 {
		t.Error("two mappings of a memfd differ")
	}
	if err := Grow(fd, 3*page); err != nil {
		t.Fatal(err)
	}
	if n := must(Size(fd))(t); n != 3*page {
		t.Errorf("size %d", n)
	}
	if err := Grow(fd, page); err == nil || !must(CannotShrink(fd))(t) {
		t.Error("a memfd could be shrunk")
	}
	for _, m := range []*Mapping{a, b, a} {
		if err := m.Unmap(); err != nil {
			t.Error(err)
		}
	}
	if _, err := Map(fd, 0, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("mapping nothing: %v", err)
	}
}

func TestTouchChangesNothing(t *testing.T) {
	data := make([]byte, 3*PageSize()+5)
	for i := range data {
		data[i] = byte(i * 7)
	}
	want := bytes.Clone(data)
	for _, cut := range []int{0, 1, 7, 8, PageSize()} {
		touch(data[cut : len(data)-cut])
	}
	touch(data[:3])
	touch(nil)
	if !bytes.Equal(data, want) {
		t.Error("touch changed bytes")
	}
}

func TestTouchMakesPagesPresent(t *testing.T) {
	fd := must(NewMemfd("test"))(t)
	defer fd.Close()
	n := 16 * int64(PageSize())
	if err := Grow(fd, n); err != nil {
		t.Fatal(err)
	}
	for _, populate := range []func([]byte){touch, Prefault} {
		m := must(Map(fd, 0, n))(t)
		populate(m.Bytes())
		present := make([]byte, 16)
		mincore(t, m.Bytes(), present)
		if !bytes.Equal(present, bytes.Repeat([]byte{1}, 16)) {
			t.Errorf("pages present: %v", present)
		}
		_ = m.Unmap()
	}
}

func TestFutex(t *testing.T) {
	var w atomic.Uint64
	start := time.Now()
	if err := FutexWait(&w, 1, time.Minute); err != nil { // another value
		t.Fatal(err)
	}
	if err := FutexWait(&w, 0, 0); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Fatalf("waited %v for nothing", d)
	}
	start = time.Now()
	for time.Since(start) < 10*time.Millisecond {
		if err := FutexWait(&w, 0, 10*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	for range 3 {
		go func() {
			for w.Load() == 0 {
				if err := FutexWait(&w, 0, time.Minute); err != nil {
					done <- err
				}
			}
			done <- nil
		}()
	}
	time.Sleep(5 * time.Millisecond)
	w.Store(1 << 32) // the high half alone wakes no sleeper by itself
	w.Store(1)
	if err := FutexWakeAll(&w); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a sleeper was not woken")
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = FutexWait(&w, 0, time.Second); _ = FutexWakeAll(&w) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestLimits(t *testing.T) {
	must(MemlockLimitBytes())(t)
	if n := PageSize(); n < 4096 || n&(n-1) != 0 {
		t.Errorf("page size %d", n)
	}
	if Getpid() != os.Getpid() || Geteuid() != os.Geteuid() {
		t.Error("pid or user differ from package os")
	}
	Yield()
}
