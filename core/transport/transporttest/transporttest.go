// Package transporttest holds the conformance suites of package transport: Run
// for everything that claims to be a domain.Domain, RunTransport for every
// carrier that claims to be a transport.Transport.
package transporttest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// controlBytes is the control region of the groups that the suite makes.
const controlBytes = 4096 + 8

// testTimeout bounds every wait for something that must happen.
const testTimeout = 20 * time.Second

// Harness makes the groups under test.
type Harness struct {
	// New makes a fresh group of n ranks in this process and returns their
	// views by rank. The suite closes them.
	New func(t *testing.T, n int, controlBytes int64) []domain.Domain
	// NewPartial makes a group as New does, of which only the ranks in
	// present have come; the views of the others are nil. Nil where all ranks
	// always come.
	NewPartial func(t *testing.T, present rankset.Set, n int, controlBytes int64) []domain.Domain
	// Kill makes d's group see a rank as dead. Nil where ranks of one
	// process cannot be lost: tests with processes must cover it then.
	Kill func(d domain.Domain, rank int)
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"Identity", testIdentity},
		{"ControlIsShared", testControlIsShared},
		{"Bounds", testBounds},
		{"SlabByID", testSlabByID},
		{"SlabErrors", testSlabErrors},
		{"SlabAllocatesNothing", testSlabAllocatesNothing},
		{"WakeNeverLost", testWakeNeverLost},
		{"WakeManySleepers", testWakeManySleepers},
		{"TicketIsKept", testTicketIsKept},
		{"SleepIsBounded", testSleepIsBounded},
		{"CancelSleep", testCancelSleep},
		{"Close", testClose},
		{"CloseWakes", testCloseWakes},
		{"RetainedSurvivesClose", testRetainedSurvivesClose},
		{"Lost", testLost},
		{"Absent", testAbsent},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h) })
	}
}

func (h Harness) group(t *testing.T, n int) []domain.Domain {
	t.Helper()
	domains := h.New(t, n, controlBytes)
	closeLater(t, domains)
	return domains
}

func closeLater(t *testing.T, domains []domain.Domain) {
	t.Cleanup(func() {
		for _, d := range domains {
			if d == nil {
				continue
			}
			if err := d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
	})
}

func testIdentity(t *testing.T, h Harness) {
	for _, n := range []int{1, 2, 5, rankset.MaxRanks} {
		for r, d := range h.group(t, n) {
			if d.Rank() != r || d.NumRanks() != n {
				t.Errorf("rank %d of %d says it is %d of %d", r, n, d.Rank(), d.NumRanks())
			}
			if got, want := d.Members().Load(), uint64(membership.Full(1, n)); got != want {
				t.Errorf("members of %d ranks is %#x, not %#x", n, got, want)
			}
			if got, want := d.Present(), rankset.Upto(n); got != want {
				t.Errorf("present of %d ranks is %v, not %v", n, got, want)
			}
		}
	}
}

func testControlIsShared(t *testing.T, h Harness) {
	domains := h.group(t, 3)
	for owner := range domains {
		seg := domains[owner].Control(owner)
		if seg.SizeBytes() != controlBytes || !bytes.Equal(seg.Bytes(0, controlBytes), make([]byte, controlBytes)) {
			t.Fatalf("rank %d: control region is not %d zero bytes", owner, controlBytes)
		}
		for writer, d := range domains {
			d.Control(owner).Word(int64(8 * writer)).Store(uint64(100*owner + writer + 1))
		}
		for reader, d := range domains {
			for writer := range domains {
				got := d.Control(owner).Word(int64(8 * writer)).Load()
				if want := uint64(100*owner + writer + 1); got != want {
					t.Errorf("rank %d reads %d in rank %d's word, written by %d: want %d", reader, got, owner, writer, want)
				}
			}
		}
	}
	if word := domains[0].Members(); !word.CompareAndSwap(word.Load(), word.Load()+1<<membership.EpochShift) {
		t.Error("nobody else changes the word, and it did not change")
	}
	if got := membership.Members(domains[2].Members().Load()).Epoch(); got != 2 {
		t.Errorf("the epoch that another rank raised is %d, not 2", got)
	}
}

func testBounds(t *testing.T, h Harness) {
	d := h.group(t, 1)[0]
	_, slab, err := d.AddSlab(4100) // the last word would be cut off
	if err != nil {
		t.Fatal(err)
	}
	for _, seg := range []domain.Segment{d.Control(0), slab} {
		n := seg.SizeBytes()
		seg.Word(0).Store(1)
		seg.Word((n - 8) &^ 7).Store(2)
		seg.Bytes(n-1, 1)[0] = 3
		seg.Prefault(0, n)
		seg.Prefault(n-1, 1)
		mustPanic(t, "word before the start", func() { seg.Word(-8) })
		mustPanic(t, "word across the end", func() { seg.Word((n - 1) &^ 7).Load(); seg.Word(n &^ 7) })
		mustPanic(t, "word not aligned", func() { seg.Word(4) })
		mustPanic(t, "bytes across the end", func() { seg.Bytes(n-1, 2) })
		mustPanic(t, "bytes before the start", func() { seg.Bytes(-1, 2) })
		if b := seg.Bytes(0, 8); cap(b) != 8 {
			t.Errorf("the slice could be grown over the segment: capacity %d", cap(b))
		}
	}
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	f()
}

func testSlabByID(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	sizes := []int64{16, 4096, 1<<20 + 24, 3 << 20}
	for i, n := range sizes {
		id, slab, err := domains[1].AddSlab(n)
		if err != nil || id != i || slab.SizeBytes() != n {
			t.Fatalf("slab %d of %d bytes: id %d, %v", i, n, id, err)
		}
		if slab.Word(0).Load() != 0 || slab.Bytes(n-1, 1)[0] != 0 {
			t.Errorf("slab %d is not zeroed", id)
		}
		seen := mustSlab(t, domains[0], 1, id)
		if seen.SizeBytes() != n {
			t.Fatalf("slab %d has %d bytes for its peer, %d for its owner", id, seen.SizeBytes(), n)
		}
		slab.Word(0).Store(uint64(1000 + id))
		copy(seen.Bytes(n-3, 3), []byte{1, 2, byte(id)})
		if seen.Word(0).Load() != uint64(1000+id) || !bytes.Equal(slab.Bytes(n-3, 3), []byte{1, 2, byte(id)}) {
			t.Errorf("slab %d: what one rank writes the other does not see", id)
		}
	}
	for id := range sizes { // none lies over another
		if got := mustSlab(t, domains[1], 1, id).Word(0).Load(); id > 0 && got != uint64(1000+id) {
			t.Errorf("slab %d reads %d", id, got)
		}
	}
}

func mustSlab(t *testing.T, d domain.Domain, rank, id int) domain.Segment {
	t.Helper()
	seg, err := d.Slab(rank, id)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

func testSlabErrors(t *testing.T, h Harness) {
	d := h.group(t, 2)[0]
	for _, c := range []struct{ rank, id int }{{0, 0}, {1, 0}, {1, 1023}, {1, 1024}, {1, -1}, {2, 0}, {-1, 0}} {
		if seg, err := d.Slab(c.rank, c.id); err == nil {
			t.Errorf("slab %d of rank %d exists: %d bytes", c.id, c.rank, seg.SizeBytes())
		}
	}
	for _, n := range []int64{0, -1} {
		if _, _, err := d.AddSlab(n); err == nil {
			t.Errorf("a slab of %d bytes was made", n)
		}
	}
	if id, _, err := d.AddSlab(8); id != 0 || err != nil {
		t.Errorf("after refused slabs: id %d, %v", id, err)
	}
}

func testSlabAllocatesNothing(t *testing.T, h Harness) {
	domains := h.group(t, 2)
	if _, _, err := domains[1].AddSlab(4096); err != nil {
		t.Fatal(err)
	}
	mustSlab(t, domains[0], 1, 0)
	n := testing.AllocsPerRun(100, func() {
		seg, _ := domains[0].Slab(1, 0)
		seg.Word(8).Add(1)
		domains[0].Control(1).Word(0).Add(1)
		domains[0].Wake(1)
		if p := domains[0].Process(1); p.Dying() || p.Lost() != nil {
			t.Error("a living rank is lost")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per access", n)
	}
}

func testLost(t *testing.T, h Harness) {
	domains := h.group(t, 3)
	for _, d := range domains {
		for r := range domains {
			mustLive(t, d, r)
		}
	}
	if h.Kill == nil {
		return
	}
	killed := domains[0].Process(2)
	ticket := domains[0].PrepareSleep()
	h.Kill(domains[1], 2)
	start := time.Now()
	domains[0].Sleep(ticket, testTimeout)
	if d := time.Since(start); d > testTimeout/2 {
		t.Errorf("a loss did not end the sleep: %v", d)
	}
	if err := killed.Lost(); !errors.Is(err, domain.ErrExited) {
		t.Errorf("Lost gives %v", err)
	}
	if !killed.Dying() {
		t.Error("a dead rank is not dying")
	}
	mustLive(t, domains[0], 0)
	mustLive(t, domains[0], 1)
}

func mustLive(t *testing.T, d domain.Domain, rank int) {
	t.Helper()
	p := d.Process(rank)
	if p == nil {
		t.Fatalf("rank %d is present and has no process", rank)
	}
	if err := p.Lost(); err != nil || p.Dying() {
		t.Errorf("rank %d lives: lost is %v, dying %v", rank, err, p.Dying())
	}
	if p.PID() < 0 {
		t.Errorf("rank %d: process id %d", rank, p.PID())
	}
}

// testAbsent looks at a group of four of which two have come.
func testAbsent(t *testing.T, h Harness) {
	if h.NewPartial == nil {
		t.Skip("all ranks of this transport always come")
	}
	present := rankset.Of(1, 3)
	domains := h.NewPartial(t, present, 4, controlBytes)
	closeLater(t, domains)
	for r, d := range domains {
		if (d != nil) != (present.Has(r)) {
			t.Fatalf("rank %d: view %v", r, d)
		}
		if d != nil {
			mustMiss(t, d, present)
		}
	}
	domains[1].Control(3).Word(0).Store(5)
	if domains[3].Control(3).Word(0).Load() != 5 {
		t.Error("the present ranks share nothing")
	}
}

func mustMiss(t *testing.T, d domain.Domain, present rankset.Set) {
	t.Helper()
	if d.NumRanks() != 4 || d.Present() != present || d.Members().Load() != uint64(membership.New(1, present)) {
		t.Errorf("%d ranks, present %v, members %#x", d.NumRanks(), d.Present(), d.Members().Load())
	}
	for _, r := range []int{0, 2} {
		if d.Control(r) != nil || d.Process(r) != nil {
			t.Errorf("absent rank %d has a control segment or a process", r)
		}
		if _, err := d.Slab(r, 0); err == nil {
			t.Errorf("absent rank %d has a slab", r)
		}
		d.Wake(r)
	}
	mustLive(t, d, 1)
	mustLive(t, d, 3)
}
