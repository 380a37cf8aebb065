//go:build cgo

package cpu

import (
	"bytes"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
)

// TestTeamPanics: whichever part panics, run does so too, not before all other
// parts have ended, and the team works on.
func TestTeamPanics(t *testing.T) {
	const parts = 4
	bad, ended := -1, atomic.Int32{}
	team := newTeam(parts, func(part int) {
		if part == bad {
			panic("part of a test")
		}
		ended.Add(1)
	})
	defer team.close()
	for bad = range parts {
		ended.Store(0)
		require.PanicsWithValue(t, "part of a test", func() { team.run(parts) })
		require.EqualValues(t, parts-1, ended.Load())
	}
	bad = -1
	ended.Store(0)
	team.run(parts)
	require.EqualValues(t, parts, ended.Load())
}

// A batch that is large enough to be shared without a test's help, in rows that
// end in the middle of vectors and lines.
func TestThreadsShareLargeBatches(t *testing.T) {
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
		k, err := Open(Options{Threads: 8})
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
