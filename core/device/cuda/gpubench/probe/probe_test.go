package probe

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/libnvrtc"
	"github.com/moewire/moewire/core/internal/testenv"
)

var code = []byte("kernels\x00")

// emulate is the emulator with these kernels, too, its context current.
func emulate(t *testing.T) *libcuda.Library {
	if cudatest.OnDevice() {
		t.Skip("make gpu-test asks the device")
	}
	lib := cudatest.Benchmarks().Emulate(t).Library
	runtime.LockOSThread() // a test has a goroutine, and so a thread, of its own
	require.NoError(t, lib.Init())
	dev, err := lib.Device(0)
	require.NoError(t, err)
	ctx, err := lib.RetainPrimary(dev)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, lib.ReleasePrimary(dev)) })
	require.NoError(t, lib.PushContext(ctx))
	t.Cleanup(func() { assert.NoError(t, lib.PopContext()) })
	return lib
}

// TestAll: a device on which everything happens in order fits.
func TestAll(t *testing.T) {
	res, err := Run(emulate(t), code, Few)
	require.NoError(t, err)
	require.NoError(t, res.Check())
	lasts := 5 * Few.lastBlocks() * Few.Threads
	require.EqualValues(t, 2*5*words+lasts, res.Values)
	require.EqualValues(t, 2*5*words, res.Unordered)
}

// TestOldValuesAreCounted: words that are not of the round, and waits without an end.
func TestOldValuesAreCounted(t *testing.T) {
	s := Few
	s.Pairs, s.Rounds, s.LimitNs = 1, 1, 1e6
	lib := emulate(t)
	a := &asking{lib: lib, caller: lib.NewCaller(), s: s}
	defer func() { require.NoError(t, a.close()) }()
	require.NoError(t, a.open(code))
	require.NoError(t, a.begin(true))
	data := unsafe.Slice(dl.At[uint64](uintptr(a.data)), words)
	for i := range data {
		data[i] = 1
	}
	data[7], data[words-1] = 0, 0
	var res Result
	require.NoError(t, a.launch(read, 1, s.Threads, 1))
	out, err := a.end(&res)
	require.NoError(t, err)
	require.EqualValues(t, 1, res.Late)
	require.Zero(t, out[outOld])
	*dl.At[uint64](uintptr(a.flags)) = 1
	require.NoError(t, a.launch(read, 1, s.Threads, 1))
	out, err = a.end(&res)
	require.NoError(t, err)
	require.EqualValues(t, 2, out[outOld])
}

func TestCheck(t *testing.T) {
	good := Result{Values: 10, Unordered: 10, OldUnordered: 3, Lanes: 32, LanesOn: 32, ClockMin: 1, ClockMax: 2, Steps: 5}
	require.NoError(t, good.Check())
	for text, change := range map[string]func(*Result){
		"no value":                func(r *Result) { r.Values = 0 },
		"2 of 10 values":          func(r *Result) { r.Old = 2 },
		"1 waits":                 func(r *Result) { r.Late = 1 },
		"31 of 32 threads":        func(r *Result) { r.LanesOn = 31 },
		"0 steps":                 func(r *Result) { r.Steps = 0 },
		"5 steps, 1 of them back": func(r *Result) { r.Back = 1 },
	} {
		r := good
		change(&r)
		require.ErrorContains(t, r.Check(), text)
	}
}

// TestCompiles for a GPU.
func TestCompiles(t *testing.T) {
	lib, err := libnvrtc.Load(testenv.Toolkit(t, "lib/libnvrtc.so.*"))
	require.NoError(t, err)
	code, err := Compile(lib, "sm_90")
	require.NoError(t, err)
	require.Equal(t, "\x7fELF", string(code[:4]))
}
