package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFormsUseEveryVariant: what TestForms runs has each kernel that is chosen
// by shape, rows that need one turn of all threads and more, and that leave some
// of the last one idle.
func TestFormsUseEveryVariant(t *testing.T) {
	kernels, turns, idle := map[int]bool{}, map[uint32]bool{}, false
	for _, f := range forms {
		kernels[reduceKernel(f.flags)] = true
		threads, vectors := rowThreads(int32(f.hidden), 64), uint32(f.hidden)/vectorValues
		turns[(vectors+threads-1)/threads] = true
		idle = idle || vectors > threads && vectors%threads != 0
	}
	require.Len(t, kernels, kernelReduceRunsWide-kernelReduce+1)
	require.True(t, turns[1] && turns[2] && turns[3] && idle, "%v", turns)
}

// TestRowThreads: whole warps, one thread per rank at least, and no more turns
// than with all threads.
func TestRowThreads(t *testing.T) {
	for hidden, want := range map[int32]uint32{8: 64, 512: 64, 1024: 128, 2048: 256, 2056: 160, 4096: 256, 5120: 224, 7168: 224, 8192: 256} {
		require.Equal(t, want, rowThreads(hidden, 256), "%d", hidden)
	}
	for vectors := uint32(1); vectors < 3000; vectors++ {
		n := rowThreads(int32(vectors*vectorValues), 256)
		require.True(t, n%warpThreads == 0 && n >= MaxRanks && n <= 256)
		require.LessOrEqual(t, (vectors+n-1)/n, (vectors+255)/256, "%d", vectors)
	}
}
