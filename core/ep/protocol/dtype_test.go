package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlagsOfDTypes: flags say each type and nothing else, and no others say one.
func TestFlagsOfDTypes(t *testing.T) {
	known := map[Flags]bool{}
	for _, row := range []DType{BF16, FP8, FP8Pow2, FP8UE8M0} {
		for _, output := range []DType{BF16, FP32} {
			flags := row.Flags() | output.Flags()
			known[flags] = true
			rows, outputs := (flags | FlagFlat | FlagHasMore).DTypes()
			require.Equal(t, [2]DType{row, output}, [2]DType{rows, outputs})
		}
	}
	for flags := range Flags(FlagFlat) {
		if rows, _ := flags.DTypes(); flags&FlagHasMore == 0 && !known[flags] {
			require.Equal(t, Unknown, rows, "flags %#x", flags)
		}
	}
}

func TestRows(t *testing.T) {
	for _, c := range []struct {
		d                    DType
		bytes, words, divide int64
		row, output          bool
	}{
		{BF16, 1024, 0, 8, true, true},
		{FP32, 2048, 0, 8, false, true},
		{FP8, 512, 4, 128, true, false},
		{FP8Pow2, 512, 4, 128, true, false},
		{FP8UE8M0, 512, 1, 512, true, false},
		{Unknown, 0, 0, 8, false, false},
		{Unknown + 7, 0, 0, 8, false, false},
	} {
		require.Equal(t, c.bytes, c.d.RowBytes(512), c.d)
		require.Equal(t, c.words, c.d.ScaleWords(512), c.d)
		require.Equal(t, c.divide, c.d.Multiple(), c.d)
		require.Equal(t, [2]bool{c.row, c.output}, [2]bool{c.d.IsRow(), c.d.IsOutput()}, c.d)
	}
}
