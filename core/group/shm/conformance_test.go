package shm

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConformance(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{New: newGroup, NewPartial: newPartialGroup})
}

// openAll opens n listeners in this process and gathers their metadata.
func openAll(t testing.TB, n int, controlBytes int64) ([]*Listener, [][]byte) {
	t.Helper()
	listeners, all := make([]*Listener, n), make([][]byte, n)
	for r := range n {
		l, err := Open(Config{Rank: r, NumRanks: n, ControlBytes: controlBytes, ABIVersion: 7, Params: []byte("p")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		listeners[r], all[r] = l, l.Metadata()
	}
	return listeners, all
}

// connectAll connects the listeners that are not nil, each on a goroutine.
func connectAll(listeners []*Listener, all [][]byte, deadline time.Duration) ([]domain.Domain, []error) {
	domains, errs := make([]domain.Domain, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	for r, l := range listeners {
		if l == nil {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			domains[r], errs[r] = l.Connect(all, deadline)
		}()
	}
	wg.Wait()
	return domains, errs
}

func newGroup(t *testing.T, n int, controlBytes int64) []domain.Domain {
	t.Helper()
	listeners, all := openAll(t, n, controlBytes)
	domains, errs := connectAll(listeners, all, 30*time.Second)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return domains
}

func newPartialGroup(t *testing.T, present rankset.Set, n int, controlBytes int64) []domain.Domain {
	t.Helper()
	listeners, all := openAll(t, n, controlBytes)
	for r := range n {
		if !present.Has(r) {
			listeners[r], all[r] = nil, nil
		}
	}
	domains, errs := connectAll(listeners, all, 30*time.Second)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return domains
}

// holdings is what a process may leak.
func holdings(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d descriptors, %d goroutines, %+v", len(fds), leftGoroutines(2), sys.Stats())
}

// leftGoroutines gives those past their last word time to end, until there are
// at most so many.
func leftGoroutines(most int) (n int) {
	for range 500 {
		if n = runtime.NumGoroutine(); n <= most {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return n
}

func TestNothingIsLeft(t *testing.T) {
	before := holdings(t)
	for range 3 {
		domains := newGroup(t, 4, 4096)
		_, slab, err := domains[0].AddSlab(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := domains[1].Slab(0, 0); err != nil {
			t.Fatal(err)
		}
		slab.Retain()
		for _, d := range domains {
			d.Close()
		}
		slab.Word(0).Store(1)
		slab.Release()
	}
	l, all := openAll(t, 2, 8) // never connected
	l[0].Close()
	if _, err := l[1].Connect(all, 50*time.Millisecond); err == nil {
		t.Error("connected to a closed listener")
	}
	if after := holdings(t); after != before {
		t.Errorf("before: %s\nafter:  %s", before, after)
	}
}

func BenchmarkWakeNobodySleeps(b *testing.B) {
	listeners, all := openAll(b, 2, 4096)
	domains, _ := connectAll(listeners, all, time.Minute)
	defer domains[0].Close()
	defer domains[1].Close()
	for b.Loop() {
		domains[0].Wake(1)
	}
}
