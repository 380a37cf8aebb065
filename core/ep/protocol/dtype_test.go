package protocol

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlagsOfDTypes: flags say each type and nothing else, and no others say one.
func TestFlagsOfDTypes(t *testing.T) {
	known := map[Flags]bool{}
	for row := range Unknown {
		require.NotEmpty(t, row.String(), "type %d has no row in the table", row)
		for output := range Unknown {
			if row.CheckRow() != nil || output.CheckOutput() != nil {
				continue
			}
			flags := row.Flags() | output.Flags()
			known[flags] = true
			rows, outputs := (flags | FlagFlat | FlagHasMore).DTypes()
			require.Equal(t, [2]DType{row, output}, [2]DType{rows, outputs})
		}
	}
	require.Len(t, known, 8)
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
		require.Equal(t, [2]bool{c.row, c.output}, [2]bool{c.d.CheckRow() == nil, c.d.CheckOutput() == nil}, c.d)
	}
}

// TestTextsOfDTypes: an error lists each name that is allowed once, and no other.
func TestTextsOfDTypes(t *testing.T) {
	require.EqualError(t, FP32.CheckRow(), "rows of float32, allowed bf16 and fp8")
	require.EqualError(t, FP8Pow2.CheckOutput(), "expert outputs of fp8, allowed bf16 and float32")
	require.EqualError(t, Unknown.CheckRow(), "rows of unknown, allowed bf16 and fp8")
}

func TestDiffer(t *testing.T) {
	for _, c := range []struct {
		rows, theirRows, outputs, theirOutputs DType
		says                                   [3]string
	}{
		{BF16, BF16, FP32, FP32, [3]string{}},
		{BF16, FP8Pow2, BF16, FP32, [3]string{"dtype", "bf16", "fp8"}},
		{FP8, FP8UE8M0, BF16, FP32, [3]string{"the format of fp8 scales", "float32", "round_scale with ue8m0"}},
		{FP8, FP8, BF16, FP32, [3]string{"output dtype", "bf16", "float32"}},
	} {
		name, mine, theirs, ok := Differ(c.rows, c.theirRows, c.outputs, c.theirOutputs)
		require.Equal(t, c.says, [3]string{name, mine, theirs})
		require.Equal(t, c.says[0] != "", ok)
	}
}
