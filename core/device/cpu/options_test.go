package cpu

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/moewire/moewire/core/device"
)

func TestOpenRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		"stores is 3,":                                {Stores: 3},
		"stores is -1,":                               {Stores: -1},
		"prefetch is -2 rows,":                        {Prefetch: -2},
		"prefetch is 65 rows,":                        {Prefetch: MaxPrefetch + 1},
		"num_threads is -1,":                          {Threads: -1},
		"num_threads is 65,":                          {Threads: MaxThreads + 1},
		"vector_width is 48,":                         {Width: 48},
		"stores is 2 (streaming), which the plain Go": {Width: Reference, Stores: StoresStreaming},
		"prefetch is 1 rows, which the plain Go":      {Width: Reference, Prefetch: 1},
		"num_threads is 2, which the plain Go":        {Width: Reference, Threads: 2},
	} {
		k, err := Open(o)
		if err == nil {
			k.Close()
			t.Errorf("%+v was not refused", o)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want something with %q", o, err, want)
		}
	}
}

// A batch that is large enough to be shared without a test's help, in rows that
// end in the middle of vectors and lines.
func TestThreadsShareLargeBatches(t *testing.T) {
	if len(Widths()) == 0 {
		t.Skip("built without cgo")
	}
	const hidden, tokens, capacity = 3 * 1032, 96, 256
	r := newRand(t)
	values := make([]uint16, tokens*hidden)
	for i := range values {
		values[i] = anyBF16(r)
	}
	k, err := Open(Options{Threads: 2, Prefetch: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	place := &device.PlaceBatch{X: offHeapBF16(t, values), Hidden: hidden, Targets: slabs(t, 1, 1, capacity, hidden, false)}
	for i := range 2 * tokens {
		place.Jobs = append(place.Jobs, device.PlaceJob{Token: int32(i % tokens), Pos: int32(i)})
	}
	k.Place(place)
	checkPlaced(t, k.Name(), place, 1)
	reduce := randomReduce(t, r, tokens, hidden, 4, true, activation)
	want := bytes.Clone(reduce.Out)
	NewReference().Reduce(reduce)
	copy(want, reduce.Out)
	clear(reduce.Out)
	if k.Reduce(reduce); !bytes.Equal(reduce.Out, want) {
		t.Errorf("byte %d of a shared sum differs", firstDifference(reduce.Out, want))
	}
}

func TestCloseEndsThreads(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		k, err := Open(Options{Threads: min(8, max(1, 8*len(Widths())))})
		if err != nil {
			t.Fatal(err)
		}
		k.Close()
		k.Close()
	}
	for range 1000 { // they end soon, not at once
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}
