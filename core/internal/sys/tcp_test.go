//go:build linux

package sys

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"
	"time"
)

// sockets are two ends of a connection, and a poller that watches b.
type sockets struct {
	a, b   *FD
	poller *Poller
	bell   *FD
	events PollEvents
}

func newSockets(t *testing.T) *sockets {
	t.Helper()
	s := &sockets{}
	l, addr, err := ListenTCP(netip.MustParseAddrPort("127.0.0.1:0"), 4)
	fatal(t, err)
	opts := TCPOptions{NoDelay: true, UserTimeout: time.Second, SendBytes: 1 << 16, ReceiveBytes: 1 << 16}
	s.a, err = DialTCP(addr, opts)
	if err == ErrInProgress {
		err = nil
	}
	fatal(t, err)
	_, err = WaitReadable([]*FD{l}, time.Now().Add(10*time.Second))
	fatal(t, err)
	s.b, err = Accept(l)
	fatal(t, err)
	s.bell, err = NewEvent()
	fatal(t, err)
	_, err = WaitSocket(s.a, true, s.bell, time.Now().Add(10*time.Second))
	fatal(t, err)
	fatal(t, FinishDial(s.a))
	fatal(t, l.Close())
	s.poller, err = NewPoller()
	fatal(t, err)
	fatal(t, s.poller.Add(s.b, 1<<40|7))
	t.Cleanup(func() {
		CloseAll(s.a, s.b, s.bell)
		fatal(t, s.poller.Close())
	})
	return s
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestVectorsGoThroughSockets(t *testing.T) {
	s := newSockets(t)
	out, in := NewVector(3), NewVector(2)
	out.Add([]byte("ab"))
	out.Add(nil)
	out.Add([]byte("cdef"))
	out.Advance(1)
	n, err := SendVector(s.a, out)
	if n != 5 || err != nil || out.Bytes() != 0 {
		t.Fatalf("sent %d, %v; %d are left", n, err, out.Bytes())
	}
	_, err = WaitReadable([]*FD{s.b}, time.Now().Add(10*time.Second))
	fatal(t, err)
	x, y := make([]byte, 2), make([]byte, 8)
	in.Add(x)
	in.Add(y)
	n, err = ReceiveVector(s.b, in)
	if n != 5 || err != nil || !bytes.Equal(x, []byte("bc")) || !bytes.Equal(y[:3], []byte("def")) || in.Bytes() != 5 {
		t.Fatalf("received %d, %v: %q %q, %d are left", n, err, x, y, in.Bytes())
	}
	if _, err = ReceiveVector(s.b, in); err != ErrAgain {
		t.Fatalf("an empty socket: %v", err)
	}
	if in.Reset(); in.Free() != 2 {
		t.Fatalf("room for %d", in.Free())
	}
}

func TestPollerReportsEdges(t *testing.T) {
	s := newSockets(t)
	poll := func() []Ready {
		t.Helper()
		ready, err := s.poller.Poll(&s.events)
		fatal(t, err)
		return ready
	}
	first := poll()
	if len(first) != 1 || first[0].Token != 1<<40|7 || !first[0].Writable || first[0].Readable {
		t.Fatalf("a fresh socket: %+v", first)
	}
	if again := poll(); len(again) != 0 {
		t.Fatalf("an edge, twice: %+v", again)
	}
	fatal(t, ShutdownWrite(s.a))
	fatal(t, s.poller.Sleep(s.bell, 10*time.Second))
	if last := poll(); len(last) != 1 || !last[0].Ended || !last[0].Readable {
		t.Fatalf("the end: %+v", last)
	}
	if !Ended(s.b) || Ended(s.a) {
		t.Fatalf("ended: %v, %v", Ended(s.b), Ended(s.a))
	}
}

func TestSleepEndsByBellAndByTime(t *testing.T) {
	s := newSockets(t)
	_, err := s.poller.Poll(&s.events)
	fatal(t, err)
	fatal(t, s.poller.Sleep(s.bell, time.Millisecond))
	fatal(t, Signal(s.bell))
	fatal(t, s.poller.Sleep(s.bell, -1))
	if stopped, err := WaitSocket(nil, false, s.bell, time.Now()); stopped || !errors.Is(err, ErrTimeout) {
		t.Fatalf("the bell is not cleared: %v, %v", stopped, err)
	}
	fatal(t, Signal(s.bell))
	if stopped, err := WaitSocket(s.b, false, s.bell, time.Now().Add(time.Hour)); !stopped || err != nil {
		t.Fatalf("stopped %v, %v", stopped, err)
	}
}

func TestInterfaceAddrs(t *testing.T) {
	addrs, err := InterfaceAddrs("lo")
	fatal(t, err)
	if len(addrs) == 0 || !addrs[0].IsLoopback() {
		t.Fatalf("addresses of lo: %v", addrs)
	}
	if _, err := InterfaceAddrs("no such one"); err == nil {
		t.Fatal("addresses of an interface that is not there")
	}
}

func TestSetLeast(t *testing.T) {
	s := newSockets(t)
	fatal(t, SetLeast(s.b, 100))
	_ = must(s.poller.Poll(&s.events))(t) // it can be written
	readable := func() bool {
		ready := must(s.poller.Poll(&s.events))(t)
		return len(ready) == 1 && ready[0].Readable
	}
	if n, err := Write(s.a, make([]byte, 99)); n != 99 || err != nil || readable() {
		t.Fatal("woken by less", n, err)
	}
	fatal(t, SetLeast(s.b, 1))
	if !readable() {
		t.Error("not told of what is there")
	}
	if n, err := Read(s.b, make([]byte, 200)); n != 99 || err != nil {
		t.Error(n, err)
	}
	fatal(t, SetLeast(s.b, 100))
	fatal(t, ShutdownWrite(s.a))
	if _, err := WaitReadable([]*FD{s.b}, time.Now().Add(30*time.Second)); err != nil || !Ended(s.b) {
		t.Error("not told of the end", err)
	}
}
