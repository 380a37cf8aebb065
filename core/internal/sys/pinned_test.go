//go:build linux

package sys

import (
	"testing"
	"time"
)

// nextNotice waits for one.
func nextNotice(t *testing.T, fd *FD) Notice {
	t.Helper()
	var n Notices
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if notice, ok := n.Next(fd); ok {
			return notice
		}
	}
	t.Fatal("no notice")
	return Notice{}
}

func TestPinnedBytesAreReleased(t *testing.T) {
	s := newSockets(t)
	fatal(t, AllowPinned(s.a))
	if !IsLocal(s.a) {
		t.Error("both ends are here")
	}
	var none Notices
	if n, ok := none.Next(s.a); ok {
		t.Fatalf("a notice of nothing: %+v", n)
	}
	data, in := make([]byte, 10_000), make([]byte, 10_000)
	for i := range data {
		data[i] = byte(i * 7)
	}
	v := NewVector(1)
	for i := range uint32(2) {
		v.Reset()
		v.Add(data)
		if n, err := SendPinned(s.a, v); n != len(data) || err != nil {
			t.Fatal(n, err)
		}
		w := NewVector(1)
		w.Add(in)
		for w.Bytes() > 0 {
			if _, err := ReceiveVector(s.b, w); err != nil && err != ErrAgain {
				t.Fatal(err)
			}
		}
		if n := nextNotice(t, s.a); n.First != i || n.Last != i {
			t.Errorf("%+v", n)
		}
		if string(in) != string(data) {
			t.Error("other bytes")
		}
	}
}

// TestAbortReleasesPinnedBytes: bytes that are not read are the sender's again.
func TestAbortReleasesPinnedBytes(t *testing.T) {
	s := newSockets(t)
	fatal(t, AllowPinned(s.a))
	v, calls := NewVector(1), uint32(0)
	for data := make([]byte, 1<<16); ; calls++ {
		v.Reset()
		v.Add(data)
		if _, err := SendPinned(s.a, v); err == ErrAgain || err == ErrNoBuffers {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	fatal(t, AbortTCP(s.a))
	seen := uint32(0)
	for seen < calls {
		n := nextNotice(t, s.a)
		seen += n.Last - n.First + 1
	}
	if seen != calls {
		t.Errorf("%d notices of %d calls", seen, calls)
	}
}
