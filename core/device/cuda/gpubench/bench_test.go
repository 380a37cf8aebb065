package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/device/cuda/gpubench/probe"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/testenv"
)

func small(driver string, fp8 bool) *options {
	return &options{
		driver: driver, emulated: true, ranks: 2, tokens: 4, hidden: 512, topK: 2, experts: 4, fp8: fp8,
		opsPerGraph: 3, replays: 2, hostOps: 2, copyBytes: 1 << 20,
	}
}

// TestSmall: counts and sums are checked in it; of times there is only to say
// that all were taken.
func TestSmall(t *testing.T) {
	if cudatest.OnDevice() {
		t.Skip("make gpu-bench runs it there")
	}
	runtime.LockOSThread() // as main does: the device's context is the thread's
	driver := cudatest.Build{}.Library(t)
	for _, fp8 := range []bool{false, true} {
		res, err := run(small(driver, fp8))
		require.NoError(t, err)
		assertTimed(t, res)
		assert.Positive(t, res.TotalUs)
		for _, name := range partNames {
			assert.Contains(t, res.Parts, name)
		}
	}
}

// TestForcedVariants: each one's counts and sums are checked in it.
func TestForcedVariants(t *testing.T) {
	if cudatest.OnDevice() {
		t.Skip("make gpu-bench runs it there")
	}
	runtime.LockOSThread()
	o := small(cudatest.Build{}.Library(t), false)
	for o.loads = int(cuda.Narrow); o.loads <= int(cuda.Deep); o.loads++ {
		res, err := run(o)
		require.NoError(t, err)
		assertTimed(t, res)
		assert.Equal(t, o.loads, res.Loads)
	}
}

func assertTimed(t *testing.T, res *result) {
	t.Helper()
	for _, v := range []float64{res.CopyGBps, res.DispatchUs, res.CombineUs, res.DispatchFloor, res.CombineFloor} {
		assert.Positive(t, v)
	}
	assert.False(t, res.LaunchesCounted)
}

// TestFloors: a copy that moves 1000 GB in a second moves 1000 bytes in a
// nanosecond; the bytes were worked out by hand.
func TestFloors(t *testing.T) {
	for _, c := range []struct {
		name                        string
		ranks, tokens, hidden, topK int
		fp8                         bool
		dispatch, combine           int64
	}{
		// x: 8 rows of 256; stored: 16 of 256. Outputs: 16 of 256; sums: 8 of 256.
		{"small", 2, 4, 128, 2, false, 2048 + 4096, 4096 + 2048},
		// Stored: 16 of 128 bytes and one scale of 4.
		{"small fp8", 2, 4, 128, 2, true, 2048 + 2112, 4096 + 2048},
		// x: 8192 rows of 14336; stored: 65536 of them.
		{"large", 8, 1024, 7168, 8, false, 117440512 + 939524096, 939524096 + 117440512},
		// Stored: 65536 of 7168 and 56 scales of 4.
		{"large fp8", 8, 1024, 7168, 8, true, 117440512 + 484442112, 939524096 + 117440512},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := &group{
				o:        &options{ranks: c.ranks, tokens: c.tokens, hidden: c.hidden, topK: c.topK, fp8: c.fp8},
				distinct: int64(c.ranks * c.tokens * c.topK),
			}
			var err error
			g.slab, err = layout.Of(layout.Shape{
				MaxTokens: int64(c.tokens), Hidden: int64(c.hidden), NumExperts: 256, NumRanks: int64(c.ranks), RowType: g.o.rowType(),
			})
			require.NoError(t, err)
			res := &result{CopyGBps: 1000, DispatchUs: float64(c.dispatch) * 2e-6, CombineUs: float64(c.combine) * 4e-6}
			g.floors(res)
			assert.Equal(t, [2]int64{c.dispatch, c.combine}, [2]int64{res.DispatchBytes, res.CombineBytes})
			assert.InDelta(t, 0.5, res.DispatchFloor, 1e-9)
			assert.InDelta(t, 0.25, res.CombineFloor, 1e-9)
		})
	}
}

// TestSmallBaseline: its sums are checked in it.
func TestSmallBaseline(t *testing.T) {
	testenv.InAll(t)
	if cudatest.OnDevice() {
		t.Skip("make gpu-bench runs it there")
	}
	runtime.LockOSThread()
	driver := cudatest.Benchmarks().Library(t)
	for _, fp8 := range []bool{false, true} {
		for _, ranks := range []int{1, 2} {
			o := small(driver, fp8)
			o.baseline, o.ranks = true, ranks
			res, err := runBaseline(o)
			require.NoError(t, err)
			assertTimed(t, res)
			assert.Nil(t, res.Parts)
		}
	}
}

// TestProbes: what the emulator answers is checked in it.
func TestProbes(t *testing.T) {
	if cudatest.OnDevice() {
		t.Skip("make gpu-test asks the device")
	}
	runtime.LockOSThread()
	o := small(cudatest.Benchmarks().Library(t), false)
	o.probes = true
	res, err := o.run()
	require.NoError(t, err)
	assert.IsType(t, &probe.Result{}, res)
}
