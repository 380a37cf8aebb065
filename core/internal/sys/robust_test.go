//go:build linux

package sys

import (
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime ends the thread
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // the main thread is the one that would not end
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
}

// robustPage is shared memory for entries.
func robustPage(t *testing.T) []byte {
	t.Helper()
	fd := must(NewMemfd("test"))(t)
	if err := Grow(fd, int64(PageSize())); err != nil {
		t.Fatal(err)
	}
	m := must(Map(fd, 0, int64(PageSize())))(t)
	t.Cleanup(func() { _ = m.Unmap(); _ = fd.Close() })
	return m.Bytes()
}

func TestRobustListMarksWhatAThreadHeld(t *testing.T) {
	page := robustPage(t)
	onThread(func() {
		l := must(NewRobustList())(t)
		for i := range int64(5) {
			if err := l.Hold(page, i*RobustBytes); err != nil {
				t.Error(err)
			}
		}
		l.Drop(page, 0*RobustBytes) // the oldest, one in the middle, the newest
		l.Drop(page, 2*RobustBytes)
		l.Drop(page, 4*RobustBytes)
		l.Drop(page, 4*RobustBytes)
		if l.Len() != 2 {
			t.Errorf("%d entries", l.Len())
		}
		t.Cleanup(l.pin.Unpin) // this thread ends without Close, on purpose
	})
	want := []bool{false, true, false, true, false}
	// The kernel marks the newest entry first, so the oldest one is the last.
	for start := time.Now(); !OwnerDied(Word(page, 1*RobustBytes).Load()) && time.Since(start) < 5*time.Second; {
		time.Sleep(time.Millisecond)
	}
	for i, marked := range want {
		if got := Word(page, int64(i)*RobustBytes).Load(); OwnerDied(got) != marked || !marked && got != 0 {
			t.Errorf("word %d is %#x after the thread's end", i, got)
		}
	}
}

func TestClosedRobustListMarksNothing(t *testing.T) {
	page := robustPage(t)
	onThread(func() {
		before := currentRobustList()
		l := must(NewRobustList())(t)
		if err := l.Hold(page, 0); err != nil {
			t.Error(err)
		}
		if got := Word(page, 0).Load(); got != uint64(l.tid) {
			t.Errorf("a held word is %#x, not %#x", got, l.tid)
		}
		l.Close()
		l.Close()
		if err := l.Hold(page, 0); err == nil {
			t.Error("a closed list holds a word")
		}
		if got := currentRobustList(); got != before {
			t.Errorf("the thread's list is %#x, before it was %#x", got, before)
		}
	})
	time.Sleep(20 * time.Millisecond)
	if got := Word(page, 0).Load(); got != 0 {
		t.Errorf("the word is %#x", got)
	}
}

func TestRobustListIsBounded(t *testing.T) {
	fd := must(NewMemfd("test"))(t)
	defer fd.Close()
	const n = robustMax + 1
	if err := Grow(fd, n*RobustBytes); err != nil {
		t.Fatal(err)
	}
	m := must(Map(fd, 0, n*RobustBytes))(t)
	defer m.Unmap()
	onThread(func() {
		l := must(NewRobustList())(t)
		defer l.Close()
		for i := range int64(n) {
			if err := l.Hold(m.Bytes(), i*RobustBytes); (err != nil) != (i == robustMax) {
				t.Errorf("entry %d: %v", i, err)
			}
		}
	})
}
