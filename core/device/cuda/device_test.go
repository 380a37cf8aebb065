package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestGiveEmulator copies the emulator to where MOEWIRE_CUDA_GIVE says, for
// programs that are tried out on it.
func TestGiveEmulator(t *testing.T) {
	to := os.Getenv("MOEWIRE_CUDA_GIVE")
	if to == "" {
		t.Skip("MOEWIRE_CUDA_GIVE names no file")
	}
	data, err := os.ReadFile(cudatest.Benchmarks().Library(t)) // gpubench is one of them
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o700))
}

// alloc allocates memory that tests read and write at its address, too.
func (g *group) alloc(numBytes uint64) *Memory {
	if !onDevice() {
		m, err := g.d.Alloc(numBytes)
		require.NoError(g.t, err)
		return m
	}
	m := &Memory{d: g.d, numBytes: numBytes}
	g.must(func() (err error) { m.addr, err = g.d.lib.MemAllocManaged(numBytes); return err })
	clear(bytesAt(uintptr(m.addr), numBytes))
	return m
}

// showShared gives an engine shared memory that tests see. (Newly made, it is
// not known to any other rank, and its own kernels hear of it by SetPeer.)
func (g *group) showShared(e *Engine) {
	shown := g.alloc(uint64(slabOff + int64(e.cfg.NumSlots)*e.cfg.SlabBytes))
	require.NoError(g.t, e.shared.Close())
	e.shared = shown
}

// TestReplays replays graphs of each length with 2, 4 and 8 ranks; on a device
// a thousand times each. Rows change, and calls that are not recorded come between.
func TestReplays(t *testing.T) {
	emu := driver(t)
	times := 2
	if onDevice() {
		times = 1000
	}
	if set := os.Getenv("MOEWIRE_CUDA_REPLAYS"); set != "" {
		var err error
		times, err = strconv.Atoi(set)
		require.NoError(t, err)
	}
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 19))
	for _, ranks := range []int{2, 4, 8} {
		for _, length := range []int{1, 2, 3, 7} {
			if ranks == 8 && length > 1 && !onDevice() {
				continue // slow there
			}
			t.Run(fmt.Sprintf("ranks=%d/length=%d", ranks, length), func(t *testing.T) {
				emu.Schedule(rng.Uint64(), 4, 8+ranks)
				replayTimes(t, rng, ranks, length, times)
			})
		}
	}
}

// replayTimes replays half of the times with other rows at each, so that what is left
// of an earlier replay shows, and half in ten rounds without a stop.
func replayTimes(t *testing.T, rng *rand.Rand, ranks, length, times int) {
	s := layout.Shape{MaxTokens: 3, Hidden: 16, NumExperts: int64(ranks), NumRanks: int64(ranks)}
	slabs, err := layout.Of(s)
	require.NoError(t, err)
	lengths := slices.Repeat([]int{length}, ranks)
	play := func(name string, rounds, replays int) {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, ranks, 2, slabs.SizeBytes)
			replayRounds(t, g, g.random(rng, s, 2, 0, 0), rng, lengths, rounds, replays*length)
		})
	}
	play("one by one", max(2, times/2), 1)
	if times >= 20 {
		play("in a row", 10, times/20)
	}
}

// peek copies a value out of memory of the device's own, which the host reads only
// where the device is emulated. It waits for none of the ranks' streams.
func peek[T any](g *group, addr uint64) T {
	if !onDevice() {
		return *dl.At[T](uintptr(addr))
	}
	return onHost[T](g, addr, nil)
}

// poke alters such a value. Nothing that runs may look at it meanwhile.
func poke[T any](g *group, addr uint64, alter func(*T)) {
	if !onDevice() {
		alter(dl.At[T](uintptr(addr)))
		return
	}
	onHost(g, addr, alter)
}

// onHost is a copy of a device's value, which goes back if it is altered.
func onHost[T any](g *group, addr uint64, alter func(*T)) T {
	var zero T
	size, copied := uint64(unsafe.Sizeof(zero)), g.copied
	require.LessOrEqual(g.t, size, copiedBytes)
	move := func(to, from libcuda.DevicePtr) {
		g.must(func() error { return errors.Join(g.d.lib.CopyAsync(to, from, size, g.d.own), g.d.finish()) })
	}
	move(copied.addr, libcuda.DevicePtr(addr))
	value := dl.At[T](uintptr(copied.Address()))
	if alter != nil {
		alter(value)
		move(libcuda.DevicePtr(addr), copied.addr)
	}
	return *value
}
