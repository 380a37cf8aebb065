package transporttest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

// await is the waiting loop that core/ep/cpu uses, without its spinning: it
// returns whether the word reached want within testTimeout.
func await(d domain.Domain, word *atomic.Uint64, want uint64) bool {
	for start := time.Now(); time.Since(start) < testTimeout; {
		ticket := d.PrepareSleep()
		if word.Load() >= want {
			d.CancelSleep()
			return true
		}
		d.Sleep(ticket, testTimeout)
	}
	return false
}

// testWakeNeverLost plays ping-pong without any spinning: one lost wake-up
// costs 20 s and fails. Every second round the waker is delayed, so both
// orders of sleep and wake occur.
func testWakeNeverLost(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	const rounds = 4000
	var wg sync.WaitGroup
	for me := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d, peer := domains[me], 1-me
			for i := uint64(1); i <= rounds; i++ {
				if i%2 == uint64(me) && i%64 < 2 {
					time.Sleep(100 * time.Microsecond)
				}
				d.Control(peer).Word(0).Store(i)
				d.Wake(peer)
				if !await(d, d.Control(me).Word(0), i) {
					t.Errorf("rank %d: round %d: nobody woke it", me, i)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// testWakeManySleepers has several goroutines of one rank asleep.
func testWakeManySleepers(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	const sleepers, rounds = 4, 100
	var wg sync.WaitGroup
	done := domains[0].Control(0).Word(64)
	for range sleepers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := uint64(1); i <= rounds; i++ {
				if !await(domains[1], domains[1].Control(1).Word(0), i) {
					t.Errorf("round %d: a sleeper was not woken", i)
				}
				domains[1].Control(0).Word(64).Add(1)
				domains[1].Wake(0)
			}
		}()
	}
	for i := uint64(1); i <= rounds && !t.Failed(); i++ {
		domains[0].Control(1).Word(0).Store(i)
		domains[0].Wake(1)
		if !await(domains[0], done, sleepers*i) {
			t.Errorf("round %d: the waker was not woken", i)
		}
	}
	wg.Wait()
}

// testTicketIsKept wakes between PrepareSleep and Sleep.
func testTicketIsKept(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	for range 100 {
		ticket := domains[0].PrepareSleep()
		domains[1].Wake(0)
		start := time.Now()
		domains[0].Sleep(ticket, testTimeout)
		if d := time.Since(start); d > testTimeout/2 {
			t.Fatalf("a wake before Sleep was lost: slept %v", d)
		}
	}
}

func testSleepIsBounded(t *testing.T, h Harness) {
	d := h.group(t, 1)[0]
	for _, want := range []time.Duration{0, time.Millisecond, 30 * time.Millisecond} {
		start := time.Now()
		d.Sleep(d.PrepareSleep(), want)
		if got := time.Since(start); got > want+testTimeout/2 {
			t.Errorf("slept %v instead of %v", got, want)
		}
	}
	start := time.Now()
	for range 5 { // a sleep may end early, but a sleep it must be
		d.Sleep(d.PrepareSleep(), 20*time.Millisecond)
	}
	if got := time.Since(start); got < 20*time.Millisecond {
		t.Errorf("five sleeps of 20 ms took %v", got)
	}
	d.Yield()
}

// testCancelSleep checks that a cancelled sleep leaves nothing behind.
func testCancelSleep(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	for range 10 {
		domains[0].PrepareSleep()
		domains[0].CancelSleep()
	}
	ticket := domains[0].PrepareSleep()
	start := time.Now()
	time.AfterFunc(5*time.Millisecond, func() { domains[1].Wake(0) })
	domains[0].Sleep(ticket, testTimeout)
	if d := time.Since(start); d > testTimeout/2 {
		t.Errorf("after cancelled sleeps a wake was lost: %v", d)
	}
}

func testClose(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	for range 2 {
		if err := domains[0].Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := domains[0].AddSlab(8); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("AddSlab after Close: %v", err)
	}
	if _, err := domains[0].Slab(1, 0); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("Slab after Close: %v", err)
	}
	start := time.Now()
	domains[0].Wake(1)
	domains[0].Sleep(domains[0].PrepareSleep(), testTimeout)
	domains[0].PrepareSleep()
	domains[0].CancelSleep()
	if d := time.Since(start); d > testTimeout/2 {
		t.Errorf("a closed domain sleeps: %v", d)
	}
	domains[1].Wake(0) // the peer does not know
	if _, _, err := domains[1].AddSlab(8); err != nil {
		t.Errorf("the peer of a closed rank: %v", err)
	}
}

// testCloseWakes closes a domain under its sleepers.
func testCloseWakes(t *testing.T, h Harness) {
	for range 20 {
		d := h.group(t, 2)[0]
		var wg sync.WaitGroup
		start := time.Now()
		for range 3 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				d.Sleep(d.PrepareSleep(), testTimeout)
			}()
		}
		time.Sleep(time.Millisecond)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		if got := time.Since(start); got > testTimeout/2 {
			t.Fatalf("Close left a sleeper for %v", got)
		}
	}
}

func testRetainedSurvivesClose(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	_, own, err := domains[0].AddSlab(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	segments := []domain.Segment{own, mustSlab(t, domains[1], 0, 0), domains[1].Control(0)}
	for i, seg := range segments {
		seg.Retain()
		seg.Word(int64(8 * i)).Store(uint64(7 + i))
	}
	for _, d := range domains {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if own.Word(0).Load() != 7 || own.Bytes(8, 1)[0] != 8 || segments[2].Word(16).Load() != 9 {
		t.Error("retained memory changed at Close")
	}
	for _, seg := range segments {
		seg.Release()
	}
}
