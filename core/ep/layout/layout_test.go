package layout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

func TestOfKnownShapes(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape Shape
		want  Slab
	}{
		{
			name:  "bf16",
			shape: Shape{MaxTokens: 128, Hidden: 7168, NumExperts: 64, NumRanks: 4},
			want: Slab{
				LocalExperts: 16, RowsPerExpert: 512, RowBytes: 14336,
				LayoutOff: 81920, SrcInfoOff: 81920 + 4096, ScalesOff: 81920 + 4096 + 32768,
				RowsOff: 2 << 20, YOff: 2<<20 + 117440512, SizeBytes: 2<<20 + 2*117440512,
			},
		},
		{
			name:  "fp8, regions that end off a boundary",
			shape: Shape{MaxTokens: 3, Hidden: 128, NumExperts: 3, NumRanks: 3, RowType: protocol.FP8},
			want: Slab{
				LocalExperts: 1, RowsPerExpert: 9, RowBytes: 128,
				LayoutOff: 81920, SrcInfoOff: 86016, ScalesOff: 90112,
				RowsOff: 2 << 20, YOff: 4 << 20, SizeBytes: 6 << 20,
			},
		},
		{
			name:  "ue8m0, a quarter of the words for scales",
			shape: Shape{MaxTokens: 128, Hidden: 512, NumExperts: 64, NumRanks: 1, RowType: protocol.FP8UE8M0},
			want: Slab{
				LocalExperts: 64, RowsPerExpert: 128, RowBytes: 512,
				LayoutOff: 81920, SrcInfoOff: 86016, ScalesOff: 86016 + 32768,
				RowsOff: 2 << 20, YOff: 6 << 20, SizeBytes: 14 << 20,
			},
		},
		{
			name:  "float32 outputs, twice the room of bf16 rows",
			shape: Shape{MaxTokens: 128, Hidden: 7168, NumExperts: 64, NumRanks: 4, OutputType: protocol.FP32},
			want: Slab{
				LocalExperts: 16, RowsPerExpert: 512, RowBytes: 14336,
				LayoutOff: 81920, SrcInfoOff: 81920 + 4096, ScalesOff: 81920 + 4096 + 32768,
				RowsOff: 2 << 20, YOff: 2<<20 + 117440512, SizeBytes: 2<<20 + 3*117440512,
			},
		},
		{
			name: "flat rows, one block with columns for 8 selections and 3 bytes more",
			shape: Shape{
				MaxTokens: 128, Hidden: 7168, NumExperts: 64, NumRanks: 4,
				Flat: true, Columns: [NumColumns]int64{64, 32, 0, 3},
			},
			want: Slab{
				LocalExperts: 1, RowsPerExpert: 512, RowBytes: 14336,
				LayoutOff: 81920, SrcInfoOff: 86016, ScalesOff: 90112,
				ColumnOff: [NumColumns]int64{90112, 90112 + 32768, 0, 90112 + 32768 + 16384},
				RowsOff:   2 << 20, YOff: 2<<20 + 8<<20, SizeBytes: 2<<20 + 16<<20,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Of(c.shape)
			require.NoError(t, err)
			c.want.Shape = c.shape
			require.Equal(t, c.want, got)
		})
	}
}

func TestOfRefuses(t *testing.T) {
	good := Shape{MaxTokens: 8, Hidden: 128, NumExperts: 8, NumRanks: 4}
	for name, c := range map[string]struct {
		change func(*Shape)
		says   string
	}{
		"no rank":            {func(s *Shape) { s.NumRanks = 0 }, fmt.Sprintf("num_ranks is 0, allowed 1 to %d", rankset.MaxRanks)},
		"many ranks":         {func(s *Shape) { s.NumRanks = rankset.MaxRanks + 1 }, fmt.Sprintf("num_ranks is %d, allowed 1 to", rankset.MaxRanks+1)},
		"no token":           {func(s *Shape) { s.MaxTokens = 0 }, "num_max_tokens_per_rank is 0, allowed 1 to 2147483647"},
		"odd hidden":         {func(s *Shape) { s.Hidden = 12 }, "hidden is 12, allowed multiples of 8"},
		"odd hidden for fp8": {func(s *Shape) { s.Hidden, s.RowType = 136, protocol.FP8 }, "hidden is 136, allowed multiples of 128"},
		"odd hidden for ue8m0": {func(s *Shape) {
			s.Hidden, s.RowType = 640, protocol.FP8UE8M0
		}, "hidden is 640, allowed multiples of 512"},
		"float32 rows":           {func(s *Shape) { s.RowType = protocol.FP32 }, "rows of float32, allowed bf16 and fp8"},
		"fp8 outputs":            {func(s *Shape) { s.OutputType = protocol.FP8 }, "expert outputs of fp8, allowed bf16 and float32"},
		"columns of packed rows": {func(s *Shape) { s.Columns[ColumnTopkIdx] = 8 }, "recv_topk_idx without flat rows"},
		"many selections":        {func(s *Shape) { s.Flat, s.Columns[ColumnTopkWeights] = true, 260 }, "recv_topk_weights has 260 bytes per row, allowed 0 to 256"},
		"wide extra":             {func(s *Shape) { s.Flat, s.Columns[ColumnExtra+1] = true, 1<<16 }, "extra[1] has 65536 bytes per row, allowed 0 to 65535"},
		"negative extra":         {func(s *Shape) { s.Flat, s.Columns[ColumnExtra+3] = true, -1 }, "extra[3] has -1 bytes per row"},

		"negative":       {func(s *Shape) { s.Hidden = -8 }, "hidden is -8, allowed"},
		"uneven experts": {func(s *Shape) { s.NumExperts = 9 }, "num_experts is 9, allowed multiples of num_ranks 4"},
		"many experts":   {func(s *Shape) { s.NumExperts = 4 * 8193 }, "num_experts is 32772 on 4 ranks, allowed at most 8192 per rank"},
		"many rows":      {func(s *Shape) { s.MaxTokens = 1 << 30 }, "exceeds 2147483647 rows per expert"},
		"overflow": {func(s *Shape) {
			s.MaxTokens, s.Hidden, s.NumExperts = 1<<28, 1<<30, 4*8192
		}, "does not fit in 63 bits"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good
			c.change(&s)
			_, err := Of(s)
			require.ErrorIs(t, err, ErrShape)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestRegionsAreDisjoint: on random shapes no region overlaps another, all lie
// inside the slab, and every alignment holds.
func TestRegionsAreDisjoint(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		ranks := 1 + r.Int64N(rankset.MaxRanks)
		s := Shape{MaxTokens: 1 + r.Int64N(5000), Hidden: 128 * (1 + r.Int64N(80)), NumRanks: ranks, NumExperts: ranks * (1 + r.Int64N(64))}
		fp8 := r.IntN(2) == 0
		s.RowType, s.OutputType = drawn(fp8, fp8 && s.Hidden%512 == 0 && r.IntN(2) == 0), drawn(false, r.IntN(2) == 0)
		if s.Flat = r.IntN(2) == 0; s.Flat {
			k := r.Int64N(protocol.MaxTopK + 1)
			s.Columns = [NumColumns]int64{8 * k, 4 * k, r.Int64N(300), 0, r.Int64N(protocol.MaxExtraBytes + 1)}
		}
		slab, err := Of(s)
		require.NoError(t, err, "%+v", s)
		rows := slab.LocalExperts * slab.RowsPerExpert
		outputBytes := s.Hidden * 2
		if s.OutputType == protocol.FP32 {
			outputBytes *= 2
		}
		require.Equal(t, Region{slab.YOff, rows * outputBytes}, slab.Y())
		regions := [][2]int64{
			{0, HeaderBytes}, {slab.LayoutOff, slab.LocalExperts * ranks * 8}, {slab.SrcInfoOff, rows * 4},
			{slab.RowsOff, rows * slab.RowBytes}, {slab.YOff, rows * outputBytes},
		}
		if s.RowType.IsFP8() {
			bytes := rows * s.Hidden / protocol.QuantBlock * 4
			if s.RowType == protocol.FP8UE8M0 {
				bytes /= 4
			}
			require.Equal(t, Region{slab.ScalesOff, bytes}, slab.Scales())
			regions = append(regions, [2]int64{slab.ScalesOff, bytes})
		}
		for i, width := range s.Columns {
			require.Equal(t, Region{slab.ColumnOff[i], rows * width}, slab.Column(i))
			if width > 0 {
				regions = append(regions, [2]int64{slab.ColumnOff[i], rows * width})
			}
		}
		sort.Slice(regions, func(i, j int) bool { return regions[i][0] < regions[j][0] })
		end := int64(0)
		for _, region := range regions {
			require.GreaterOrEqual(t, region[0], end, "%+v", slab)
			end = region[0] + region[1]
		}
		require.LessOrEqual(t, end, slab.SizeBytes)
		require.Zero(t, slab.RowsOff%RegionBytes)
		require.Zero(t, slab.YOff%RegionBytes)
		require.Zero(t, slab.SizeBytes%RegionBytes)
	}
}

func TestFixedWordsAreDisjoint(t *testing.T) {
	seen := map[int64]bool{}
	take := func(off int64) {
		require.Zero(t, off%8)
		require.False(t, seen[off], "offset %d twice", off)
		seen[off] = true
	}
	for s := range rankset.MaxRanks {
		for i := range int64(8) { // a record of eight words
			take(Params(s) + 8*i)
		}
		take(Arrive(s))
		take(Done(s))
		take(Announced(s))
	}
	take(RowOrder())
	take(RowOrderMembers())
	for l := range protocol.MaxLocalExperts {
		take(Counter(l))
	}
	require.LessOrEqual(t, Counter(protocol.MaxLocalExperts-1)+8, int64(HeaderBytes))
	clear(seen)
	for j := range protocol.MaxSlotsCPU {
		take(Open(j))
		take(YReady(j))
	}
	take(WaitsFor())
	take(Beat())
	take(Since())
	take(Quiesced())
	require.LessOrEqual(t, Quiesced()+protocol.LineBytes, Record())
	require.Equal(t, int64(ControlBytes), Record()+RecordBytes)
}

func TestSizeHint(t *testing.T) {
	s := Shape{MaxTokens: 128, Hidden: 7168, NumExperts: 64, NumRanks: 4}
	hint, err := SizeHint(s, 2)
	require.NoError(t, err)
	slab, err := Of(s)
	require.NoError(t, err)
	require.Equal(t, slab.SizeBytes, SlabBytes(hint, 2))
	s.RowType = protocol.FP8
	slab, err = Of(s)
	require.NoError(t, err)
	require.LessOrEqual(t, slab.SizeBytes, SlabBytes(hint, 2), "the hint serves both dtypes")
	s.RowType = protocol.FP8UE8M0
	again, err := SizeHint(s, 2)
	require.NoError(t, err)
	require.Equal(t, hint, again)
	s.OutputType = protocol.FP32
	slab, err = Of(s)
	require.NoError(t, err)
	require.Greater(t, slab.SizeBytes, SlabBytes(hint, 2))
	fp32, err := SizeHint(s, 2)
	require.NoError(t, err)
	require.LessOrEqual(t, slab.SizeBytes, SlabBytes(fp32, 2))
	_, err = SizeHint(Shape{MaxTokens: 1 << 26, Hidden: 1 << 25, NumExperts: 64, NumRanks: 4}, math.MaxInt32)
	require.ErrorIs(t, err, ErrShape)
}

func TestWords(t *testing.T) {
	for _, op := range []uint64{0, 1, 1 << 20, 1<<48 - 2} {
		w := protocol.Counted(op, 3, true)
		require.True(t, protocol.IsFor(w, op))
		require.False(t, protocol.IsFor(w, op+1))
		require.Equal(t, 3, protocol.Combines(w))
		require.True(t, protocol.IsLast(w))
		require.False(t, protocol.IsLast(protocol.Counted(op, protocol.MaxCombines, false)))
		require.Equal(t, protocol.MaxCombines, protocol.Combines(protocol.Counted(op, protocol.MaxCombines, false)))
		require.Equal(t, 1023, protocol.DetailOf(protocol.Word(op, 1023)))
		require.True(t, op == 0 || protocol.IsPast(w, op-1))
	}
	require.False(t, protocol.IsFor(0, 0), "a zero word is no operation")
}

func TestWidths(t *testing.T) {
	extra := [protocol.NumExtras]int{3, 0, 5, protocol.MaxExtraBytes}
	require.Equal(t, [NumColumns]int64{64, 32, 3, 0, 5, 65535}, Widths(true, 8, extra))
	require.Equal(t, [NumColumns]int64{0, 0, 3, 0, 5, 65535}, Widths(false, 8, extra))
}
