package shm

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// within fails when f takes much longer than it may.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	start := time.Now()
	f()
	if d := time.Since(start); d > limit {
		t.Errorf("took %v, allowed %v", d, limit)
	}
}

func TestAbsentRankIsNamed(t *testing.T) {
	for absent := range 4 {
		listeners, all := openAll(t, 4, 64)
		listeners[absent] = nil // listens, never connects
		name := "rank " + string(rune('0'+absent))
		within(t, 10*time.Second, func() {
			_, errs := connectAll(listeners, all, 300*time.Millisecond)
			timeouts := 0 // a rank may hear of another's time-out before its own
			for r, err := range errs {
				if r != absent && (err == nil || !strings.Contains(err.Error(), name+" did not come")) {
					t.Errorf("rank %d: %v, want %s named", r, err, name)
				}
				if errors.Is(err, os.ErrDeadlineExceeded) {
					timeouts++
				}
			}
			if timeouts == 0 {
				t.Errorf("no deadline among %v", errs)
			}
		})
	}
}

func TestClosedRankIsNamedAtOnce(t *testing.T) {
	listeners, all := openAll(t, 2, 64)
	listeners[0].Close()
	within(t, 5*time.Second, func() {
		_, err := listeners[1].Connect(all, time.Minute)
		if err == nil || !strings.Contains(err.Error(), "rank 0 does not listen") {
			t.Error(err)
		}
	})
	if _, err := listeners[1].Connect(all, time.Second); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a listener that is used up: %v", err)
	}
}

func TestReasonIsPassedOn(t *testing.T) {
	listeners, all := openAll(t, 3, 64)
	errs := make(chan error, 1)
	go func() {
		_, err := listeners[1].Connect(all, time.Minute)
		errs <- err
	}()
	_, err := listeners[0].Connect(all, 300*time.Millisecond) // 2 is absent
	if err == nil || !strings.Contains(err.Error(), "rank 2 did not come") {
		t.Errorf("rank 0: %v", err)
	}
	within(t, 10*time.Second, func() {
		time.AfterFunc(5*time.Second, listeners[1].interrupt)
		err := <-errs
		if err == nil || !strings.Contains(err.Error(), "rank 0: gave up connecting: rank 2 did not come") {
			t.Errorf("rank 1: %v", err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("rank 1 does not know that it was too late: %v", err)
		}
	})
}

func TestCloseEndsConnect(t *testing.T) {
	for r := range 2 {
		listeners, all := openAll(t, 2, 64)
		time.AfterFunc(50*time.Millisecond, func() { listeners[r].Close() })
		within(t, 10*time.Second, func() {
			if _, err := listeners[r].Connect(all, time.Minute); !errors.Is(err, transport.ErrClosed) {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
}

func TestForeignConnsDoNotDisturb(t *testing.T) {
	listeners, all := openAll(t, 2, 64)
	var foreignConns []*sys.FD
	for _, msg := range [][]byte{nil, []byte("hello?"), (&message{kind: kindHello, rank: 1}).marshal()} {
		conn, err := sys.DialAbstract(listeners[0].info.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if msg != nil {
			if err := sys.Send(conn, msg, conn); err != nil {
				t.Fatal(err)
			}
		}
		foreignConns = append(foreignConns, conn)
	}
	domains, errs := connectAll(listeners, all, 20*time.Second)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, d := range domains {
		d.Close()
	}
	sys.CloseAll(foreignConns...)
}

func TestEarlyCloserDisturbsNobody(t *testing.T) {
	for range 20 {
		listeners, all := openAll(t, 4, 64)
		results := make(chan error, 4)
		for _, l := range listeners {
			go func() {
				d, err := l.Connect(all, 20*time.Second)
				if err == nil {
					err = d.Close()
				}
				results <- err
			}()
		}
		for range listeners {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestDeadlineMustBePositive(t *testing.T) {
	listeners, all := openAll(t, 1, 64)
	if _, err := listeners[0].Connect(all, 0); err == nil {
		t.Error("a deadline of 0 was accepted")
	}
}

// TestCorruptTable damages a peer's slab table: every entry must give an
// error, never SIGBUS.
func TestCorruptTable(t *testing.T) {
	domains := newGroup(t, 2, 64)
	defer domains[0].Close()
	defer domains[1].Close()
	if _, _, err := domains[1].AddSlab(4096); err != nil {
		t.Fatal(err)
	}
	owner := domains[1].(*hostDomain).own
	offset, bytes := owner.entry(0)
	goodOffset, goodBytes := offset.Load(), bytes.Load()
	for _, c := range [][2]uint64{
		{goodOffset, 4097}, {goodOffset, 0}, {goodOffset, 1 << 62}, {goodOffset, ^uint64(0)},
		{goodOffset + slabAlignment, 4096}, {goodOffset + 4096, 1}, {slabAlignment << 40, 4096},
		{^uint64(slabAlignment - 1), slabAlignment},
	} {
		offset.Store(c[0])
		bytes.Store(c[1])
		if seg, err := domains[0].Slab(1, 0); !errors.Is(err, errCorrupt) {
			t.Errorf("offset %#x, bytes %#x: %v, %v", c[0], c[1], seg, err)
		}
	}
	offset.Store(goodOffset)
	bytes.Store(goodBytes)
	if _, err := domains[0].Slab(1, 0); err != nil {
		t.Errorf("repaired table: %v", err)
	}
}

func TestAllSlabs(t *testing.T) {
	domains := newGroup(t, 2, 64)
	defer domains[0].Close()
	defer domains[1].Close()
	for id := range MaxSlabs {
		_, slab, err := domains[0].AddSlab(8)
		if err != nil {
			t.Fatal(err)
		}
		slab.Word(0).Store(uint64(id))
	}
	if _, _, err := domains[0].AddSlab(8); err == nil {
		t.Error("slab 1024 was made")
	}
	for id := range MaxSlabs {
		seg, err := domains[1].Slab(0, id)
		if err != nil || seg.Word(0).Load() != uint64(id) {
			t.Fatalf("slab %d: %v", id, err)
		}
	}
}

func TestMemoryCannotShrink(t *testing.T) {
	domains := newGroup(t, 2, 64)
	defer domains[0].Close()
	defer domains[1].Close()
	if err := sys.Grow(domains[1].(*hostDomain).own.memory, 4096); err == nil {
		t.Error("a peer's memory file could be shrunk under its owner")
	}
}

func TestWatcherFailureIsReported(t *testing.T) {
	var w watcher
	event, err := sys.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	defer event.Close()
	reports := make(chan error, 2)
	token, err := w.add(event, func(failure error) {
		reports <- failure
		if failure == nil {
			panic("report")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sys.Signal(event); err != nil {
		t.Fatal(err)
	}
	if err := <-reports; err != nil {
		t.Errorf("first report: %v", err)
	}
	if err := <-reports; !errors.Is(err, errWatcher) {
		t.Errorf("second report: %v", err)
	}
	if _, err := w.add(event, func(error) {}); !errors.Is(err, errWatcher) {
		t.Errorf("a failed watcher takes more: %v", err)
	}
	w.remove(token)
	if w.run != nil {
		t.Error("the watcher still runs")
	}
}
