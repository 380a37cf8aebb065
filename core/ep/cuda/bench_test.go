package cuda_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCallsAllocateNothing: an operation of two phases each, and a release.
func TestCallsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newGroup(t, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(1, 1)))
	call := launches(t, o)
	call()
	require.Zero(t, testing.AllocsPerRun(20, call))
	r.sync()
}

// launches makes the seven launches of an operation, and gives another one back.
func launches(t testing.TB, o *op) func() {
	return func() {
		o.dispatch()
		o.combine()
		if o.r.Dispatch(&o.args, &o.res, 1) != nil || o.r.Release(o.res.Handle, o.r.stream) != nil {
			t.Fatal("a call failed")
		}
	}
}

// BenchmarkLaunches is what the launches of two operations cost the caller; on
// the emulator only what they allocate means something, unless EMULATOR_NULL is
// set, by which they do nothing.
func BenchmarkLaunches(b *testing.B) {
	r := newGroup(b, 1)[0]
	o := newOp(r, rand.New(rand.NewPCG(1, 1)))
	call := launches(b, o)
	b.ReportAllocs()
	for range b.N {
		call()
		b.StopTimer()
		r.sync()
		b.StartTimer()
	}
}
