//go:build linux

package sys

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/testenv"
)

func pair(t *testing.T) (a, b *FD) {
	t.Helper()
	name := fmt.Sprintf("moewire-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	l := must(ListenAbstract(name, 4))(t)
	defer l.Close()
	if _, err := Accept(l); !errors.Is(err, ErrAgain) {
		t.Fatalf("accept without a caller: %v", err)
	}
	a = must(DialAbstract(name))(t)
	b = must(Accept(l))(t)
	t.Cleanup(func() { CloseAll(a, b) })
	return a, b
}

func TestDialNobody(t *testing.T) {
	if _, err := DialAbstract("moewire-test-nobody"); !errors.Is(err, ErrNoListener) {
		t.Errorf("got %v", err)
	}
}

func TestDescriptorsTravel(t *testing.T) {
	a, b := pair(t)
	fd := must(NewMemfd("test"))(t)
	defer fd.Close()
	if err := Grow(fd, 12345); err != nil {
		t.Fatal(err)
	}
	if err := Send(a, []byte("two"), fd, fd); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, fds, err := Receive(b, buf, 2)
	if err != nil || string(buf[:n]) != "two" || len(fds) != 2 {
		t.Fatalf("%d bytes, %d descriptors, %v", n, len(fds), err)
	}
	if size := must(Size(fds[1]))(t); size != 12345 || fds[1].Raw() == fd.Raw() {
		t.Errorf("size %d", size)
	}
	CloseAll(fds...)
	if _, _, err := Receive(b, buf, 2); !errors.Is(err, ErrAgain) {
		t.Errorf("no message: %v", err)
	}
	a.Close()
	if n, _, err := Receive(b, buf, 2); n != 0 || err != nil {
		t.Errorf("end of stream: %d, %v", n, err)
	}
}

func TestTooMuchIsRefusedAndNotLeaked(t *testing.T) {
	a, b := pair(t)
	event := must(NewEvent())(t)
	defer event.Close()
	before := Stats().OpenFDs
	buf := make([]byte, 4)
	for _, send := range []func() error{
		func() error { return Send(a, []byte("too long")) },
		func() error { return Send(a, []byte("fds"), event, event, event, event) },
	} {
		if err := send(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Receive(b, buf, 1); !errors.Is(err, ErrTooLarge) {
			t.Errorf("got %v", err)
		}
	}
	if got := Stats().OpenFDs; got != before {
		t.Errorf("%d open descriptors, had %d", got, before)
	}
}

func TestPeerIsThisProcess(t *testing.T) {
	a, b := pair(t)
	for _, conn := range []*FD{a, b} {
		cred := must(PeerCredentials(conn))(t)
		if cred.PID != os.Getpid() || cred.UID != os.Geteuid() {
			t.Errorf("%+v", cred)
		}
		fd, err := PeerPidfd(conn)
		if err != nil {
			testenv.Lacking(t, "peerpidfd", err.Error())
		}
		fd.Close()
	}
	must(OpenPidfd(os.Getpid()))(t).Close()
}

func TestWaitReadable(t *testing.T) {
	quiet, loud := must(NewEvent())(t), must(NewEvent())(t)
	defer CloseAll(quiet, loud)
	start := time.Now()
	if _, err := WaitReadable([]*FD{quiet, nil}, start.Add(20*time.Millisecond)); !errors.Is(err, ErrTimeout) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d < 20*time.Millisecond || d > 10*time.Second {
		t.Errorf("waited %v", d)
	}
	time.AfterFunc(5*time.Millisecond, func() { _ = Signal(loud) })
	ready, err := WaitReadable([]*FD{quiet, nil, loud}, time.Now().Add(time.Minute))
	if err != nil || len(ready) != 1 || ready[0] != 2 {
		t.Errorf("ready %v, %v", ready, err)
	}
}

func TestEpollReportsOnce(t *testing.T) {
	e := must(NewEpoll())(t)
	defer e.Close()
	once, stop := must(NewEvent())(t), must(NewEvent())(t)
	defer CloseAll(once, stop)
	if err := errors.Join(e.Add(once, 5), e.Add(stop, 6), Signal(once)); err != nil {
		t.Fatal(err)
	}
	if tokens := must(e.Wait(nil))(t); len(tokens) != 1 || tokens[0] != 5 {
		t.Errorf("tokens %v", tokens)
	}
	if err := errors.Join(Signal(once), Signal(stop)); err != nil {
		t.Fatal(err)
	}
	if tokens := must(e.Wait(nil))(t); len(tokens) != 1 || tokens[0] != 6 {
		t.Errorf("tokens %v, the first one was reported twice", tokens)
	}
	if err := e.Remove(once); err != nil {
		t.Error(err)
	}
}
