package main

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestFromFP16: every half-precision number, against its definition.
func TestFromFP16(t *testing.T) {
	for bits := range 1 << 16 {
		exponent, fraction := bits>>10&31, float64(bits&1023)
		want := math.Ldexp(1+fraction/1024, exponent-15)
		switch {
		case exponent == 0:
			want = math.Ldexp(fraction, -24)
		case exponent == 31 && fraction == 0:
			want = math.Inf(1)
		case exponent == 31:
			want = math.NaN()
		}
		got := float64(fromFP16(uint16(bits)))
		if math.IsNaN(want) {
			require.True(t, math.IsNaN(got), "%#x", bits)
			continue
		}
		want = math.Copysign(want, 1-2*float64(bits>>15))
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%#x", bits)
	}
}

// TestReadSelections: other types are widened, in memory that is reused.
func TestReadSelections(t *testing.T) {
	var s selections
	ids, bf16, fp16 := []int32{3, -1, 1 << 30}, []uint16{0x3f80, 0xbf00, 0x7f80}, []uint16{0x3c00, 0xb800, 0x7c00}
	want := []float32{1, -0.5, float32(math.Inf(1))}
	read := func() {
		got, err := s.readIDs(idsInt32, addressIn(ids), 3)
		require.NoError(t, err)
		require.Equal(t, []int64{3, -1, 1 << 30}, got)
	}
	read()
	for flag, given := range map[uint32][]uint16{weightsBF16: bf16, weightsFP16: fp16} {
		got, err := s.readWeights(flag, addressIn(given), 3)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	if !raceEnabled {
		require.Zero(t, testing.AllocsPerRun(50, func() {
			_, _ = s.readIDs(idsInt32, addressIn(ids), 3)
			_, _ = s.readWeights(weightsBF16, addressIn(bf16), 3)
		}))
	}
	_, err := s.readWeights(weightsBF16|weightsFP16, addressIn(bf16), 3)
	require.ErrorContains(t, err, "not allowed together")
	_, err = s.readIDs(idsInt32, 0, 3)
	require.ErrorContains(t, err, "topk_idx is NULL")
	require.Error(t, refuseOnGPU(idsInt32))
	require.NoError(t, refuseOnGPU(0))
}

func addressIn[T any](s []T) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s)))) }
