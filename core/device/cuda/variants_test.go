package cuda

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestFormsUseEveryVariant: what TestForms runs has each kernel that is chosen
// by shape, rows that need one turn of all threads and more, and that leave some
// of the last one idle.
func TestFormsUseEveryVariant(t *testing.T) {
	kernels, turns, idle := map[int]bool{}, map[uint32]bool{}, false
	for _, f := range forms {
		kernels[reduceOf(f.flags)] = true
		threads, vectors := rowThreads(int32(f.hidden), 64), uint32(f.hidden)/vectorValues
		turns[(vectors+threads-1)/threads] = true
		idle = idle || vectors > threads && vectors%threads != 0
	}
	require.Len(t, kernels, kernelReduceRunsFP32-kernelReduce+1)
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
		require.True(t, n%warpThreads == 0 && n >= rankset.MaxRanks && n <= 256)
		require.LessOrEqual(t, (vectors+n-1)/n, (vectors+255)/256, "%d", vectors)
	}
}

// TestVariants runs each variant on shapes that it is not chosen for, too: none may
// change a bit. Rows take more turns than any variant has loads, and less.
func TestVariants(t *testing.T) {
	emu := driver(t)
	seed := testenv.Seed(t)
	for name, l := range map[string]Loads{"narrow": Narrow, "usual": Usual, "deep": Deep} {
		for i, f := range []form{
			{name: "bf16", ranks: 2, tokens: 2, hidden: 5128, experts: 16, topK: 9},
			{name: "fp8", ranks: 2, tokens: 2, hidden: 5120, experts: 4, topK: 2, flags: protocol.FlagFP8, value: rarelyEdgy},
			{name: "UE8M0", ranks: 2, tokens: 3, hidden: 1536, experts: 4, topK: 1, flags: protocol.FlagFP8 | protocol.FlagUE8M0},
			{name: "hidden 8", ranks: 2, tokens: 9, hidden: 8, experts: 64, topK: 64},
			{name: "flat", ranks: 3, tokens: 5, hidden: 1032, experts: 12, topK: 5, flags: flat, extra: 48},
			{name: "float32 outputs by rank", ranks: 2, tokens: 3, hidden: 520, experts: 4, topK: 3, flags: protocol.FlagFP32Outputs | protocol.FlagPreReduce},
		} {
			t.Run(name+" "+f.name, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, uint64(i)))
				emu.Schedule(rng.Uint64(), 32, 6+f.ranks)
				f.ready = func(g *group) {
					for _, m := range g.ranks {
						m.cfg.Loads = l
					}
				}
				f.run(t, rng)
			})
		}
	}
}

// TestChoice is the whole table, for a device of 132 multiprocessors.
func TestChoice(t *testing.T) {
	e := &Engine{d: &Device{NumSMs: 132}, threads: usual}
	for _, c := range []struct {
		hidden, topK, ranks int32
		tokens              int
		flags               protocol.Flags
		place, reduce       int
	}{
		{128, 1, 8, 1, 0, kernelPlaceNarrow, kernelReduce},
		{128, 8, 8, 4096, 0, kernelPlaceNarrow, kernelReduce},
		{2048, 8, 8, 132, protocol.FlagFP8, kernelPlaceNarrow, kernelReduceDeep},
		{2056, 8, 8, 133, protocol.FlagFP8, kernelPlace, kernelReduce},
		{7168, 1, 8, 1, 0, kernelPlace, kernelReduceNarrow},
		{7168, 2, 8, 4096, 0, kernelPlace, kernelReduceNarrow},
		{7168, 4, 8, 1, 0, kernelPlace, kernelReduce},
		{7168, 8, 8, 1, 0, kernelPlace, kernelReduceDeep},
		{7168, 8, 2, 1, flat, kernelPlace, kernelReduceNarrow},
		{7168, 64, 8, 133, 0, kernelPlace, kernelReduce},
		{8200, 8, 8, 132, 0, kernelPlaceDeep, kernelReduceDeep},
		{16384, 16, 8, 128, protocol.FlagFP8, kernelPlaceDeep, kernelReduceDeep},
		{16384, 16, 8, 4096, protocol.FlagFP8, kernelPlace, kernelReduce},
		{16384, 16, 8, 1, protocol.FlagFP32Outputs, kernelPlaceDeep, kernelReduceFP32},
		{16384, 16, 8, 1, protocol.FlagPreReduce, kernelPlaceDeep, kernelReduceRuns},
		{16384, 1, 8, 1, protocol.FlagPreReduce | protocol.FlagFP32Outputs, kernelPlaceDeep, kernelReduceRunsFP32},
	} {
		in := common{Hidden: c.hidden, TopK: c.topK, NumRanks: c.ranks, Flags: c.flags, NumBlocks: e.rowBlocks(c.tokens)}
		threads := rowThreads(c.hidden, e.threads.row)
		require.Equal(t, kernelNames[c.place], kernelNames[e.placeKernel(&in, threads)], "%+v", c)
		require.Equal(t, kernelNames[c.reduce], kernelNames[e.reduceKernel(&in, threads)], "%+v", c)
	}
}

// TestOneNamePerOperation: a profiler finds one kernel of a dispatch by that word, and
// one of a combine, whichever variants run.
func TestOneNamePerOperation(t *testing.T) {
	for word, kernels := range map[string][]int{
		"dispatch": {kernelPlace, kernelPlaceNarrow, kernelPlaceDeep},
		"combine": {
			kernelReduce, kernelReduceNarrow, kernelReduceDeep, kernelReduceFP32, kernelReduceRuns, kernelReduceRunsFP32,
		},
	} {
		for kernel, name := range kernelNames {
			require.Equal(t, slices.Contains(kernels, kernel), strings.Contains(name, word), name)
		}
	}
}
