package shm

import (
	"errors"
	"syscall"
	"testing"

	"github.com/moewire/moewire/core/internal/sys"
)

// TestSlabsWithAndWithoutTheFile: a peer's slabs are mapped by its descriptor where the
// kernel cannot map them without it, and that is closed with the domain.
func TestSlabsWithAndWithoutTheFile(t *testing.T) {
	before := sys.Stats()
	for _, kept := range []bool{false, true} {
		stop := func() {}
		if kept {
			stop = sys.FailCall("mremap", syscall.EINVAL)
		}
		domains := newGroup(t, 2, 4096)
		stop()
		if has := domains[0].(*hostDomain).known[1].memory != nil; has != kept {
			t.Errorf("the descriptor is there: %v, expected %v", has, kept)
		}
		for id := range 3 {
			_, own, err := domains[1].AddSlab(5<<20 + 8)
			if err != nil {
				t.Fatal(err)
			}
			own.Word(5 << 20).Store(uint64(100 + id))
		}
		for _, id := range []int{2, 0, 1} {
			seen, err := domains[0].Slab(1, id)
			if err != nil || seen.SizeBytes() != 5<<20+8 || seen.Word(5<<20).Load() != uint64(100+id) {
				t.Fatalf("slab %d: %v", id, err)
			}
		}
		seen := must(domains[0].Slab(1, 2))
		seen.Retain() // beyond the domains: the file stays with its mapping
		closeAll(domains)
		seen.Word(0).Store(1)
		seen.Release()
	}
	if got := sys.Stats(); got != before {
		t.Errorf("before: %+v\nafter: %+v", before, got)
	}
}

// TestEntryBeyondTheFile: an entry that is in order but for what the file has is an error,
// with the descriptor and without it.
func TestEntryBeyondTheFile(t *testing.T) {
	for _, kept := range []bool{false, true} {
		stop := func() {}
		if kept {
			stop = sys.FailCall("mremap", syscall.EINVAL)
		}
		domains := newGroup(t, 2, 64)
		stop()
		defer closeAll(domains)
		if _, _, err := domains[1].AddSlab(4096); err != nil {
			t.Fatal(err)
		}
		offset, bytes := domains[1].(*hostDomain).own.entry(0)
		good := offset.Load()
		for _, e := range []entry{{good, 4097}, {good, 1 << 30}, {good + slabAlignment, 8}, {maxSegmentBytes, maxSegmentBytes}} {
			offset.Store(e.offset)
			bytes.Store(sealEntry(0, e.offset, e.bytes))
			if _, err := domains[0].Slab(1, 0); !errors.Is(err, errCorrupt) {
				t.Errorf("kept %v, %d bytes at %d: %v", kept, e.bytes, e.offset, err)
			}
		}
		offset.Store(good)
		bytes.Store(sealEntry(0, good, 4096))
		if _, err := domains[0].Slab(1, 0); err != nil {
			t.Error(err)
		}
	}
}
