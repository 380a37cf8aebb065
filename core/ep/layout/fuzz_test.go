package layout

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// FuzzOf gives any numbers as a shape. What is accepted has regions that
// follow one another inside the slab, behind the words, in exact arithmetic;
// the last row of every region lies in it; and the hint holds the slab.
func FuzzOf(f *testing.F) {
	f.Add(int64(128), int64(7168), int64(256), int64(8), false, false, false, int64(0), int64(0))
	f.Add(int64(1), int64(128), int64(48), int64(48), true, false, false, int64(0), int64(0))
	f.Add(int64(1)<<25, int64(1)<<30, int64(48*8192), int64(48), true, true, false, int64(0), int64(0))
	f.Add(int64(-1), int64(1)<<62, int64(0), int64(-48), false, true, false, int64(0), int64(0))
	f.Add(int64(1)<<31-1, int64(8), int64(8192), int64(1), false, false, false, int64(0), int64(0))
	f.Add(int64(4096), int64(7168), int64(256), int64(8), false, false, true, int64(8), int64(224))
	f.Add(int64(1)<<25, int64(1)<<30, int64(48), int64(48), true, true, true, int64(64), int64(65535))
	f.Add(int64(3), int64(8), int64(8), int64(8), false, false, true, int64(-1), int64(65536))
	f.Add(int64(73), int64(128), int64(48), int64(48), true, false, true, int64(46), int64(9))
	f.Fuzz(func(t *testing.T, tokens, hidden, experts, ranks int64, fp8, ue8m0, flat bool, topk, extra int64) {
		s := Shape{MaxTokens: tokens, Hidden: hidden, NumExperts: experts, NumRanks: ranks, Flat: flat}
		s.RowType, s.OutputType = drawn(fp8, ue8m0), drawn(false, extra%2 == 1)
		s.Columns = [NumColumns]int64{8 * topk, 4 * topk, extra, 0, extra / 3, 1}
		if !flat && topk%2 == 0 {
			s.Columns = [NumColumns]int64{}
		}
		slab, err := Of(s)
		if err != nil {
			require.ErrorIs(t, err, ErrShape)
			return
		}
		checkExact(t, &slab)
		hint, err := SizeHint(s, 2)
		if err == nil {
			require.LessOrEqual(t, slab.SizeBytes, SlabBytes(hint, 2))
		}
	})
}

// drawn is one of the types, of which FP32 is none for rows.
func drawn(fp8, more bool) protocol.DType {
	switch {
	case fp8 && more:
		return protocol.FP8UE8M0
	case fp8:
		return protocol.FP8
	case more:
		return protocol.FP32
	}
	return protocol.BF16
}

// checkExact computes every region again with numbers that cannot overflow.
func checkExact(t *testing.T, s *Slab) {
	times := func(factors ...int64) *big.Int {
		p := big.NewInt(1)
		for _, f := range factors {
			p.Mul(p, big.NewInt(f))
		}
		return p
	}
	rows := times(s.LocalExperts, s.NumRanks, s.MaxTokens)
	of := func(perRow int64) *big.Int { return new(big.Int).Mul(rows, big.NewInt(perRow)) }
	scales := int64(0)
	if s.RowType.IsFP8() {
		scales = s.Hidden / protocol.QuantBlock * 4
		if s.RowType == protocol.FP8UE8M0 {
			scales /= 4
		}
	}
	end := big.NewInt(HeaderBytes)
	type region struct {
		off   int64
		bytes *big.Int
		align int64
	}
	regions := []region{
		{s.LayoutOff, times(s.LocalExperts, s.NumRanks, 8), PageBytes},
		{s.SrcInfoOff, of(4), PageBytes},
		{s.ScalesOff, of(scales), PageBytes},
	}
	for i, width := range s.Columns {
		if width > 0 {
			require.True(t, s.Flat && s.LocalExperts == 1)
			regions = append(regions, region{s.ColumnOff[i], of(width), PageBytes})
		}
	}
	for _, r := range append(regions, []region{
		{s.RowsOff, of(s.RowBytes), RegionBytes},
		{s.YOff, of(2 * s.Hidden), RegionBytes},
		{s.SizeBytes, big.NewInt(0), RegionBytes},
	}...) {
		require.Zero(t, r.off%r.align)
		require.GreaterOrEqual(t, big.NewInt(r.off).Cmp(end), 0, "%+v", s)
		end = new(big.Int).Add(big.NewInt(r.off), r.bytes)
	}
	require.True(t, end.IsInt64() && end.Int64() == s.SizeBytes)
	checkWords(t, s)
}

// checkWords looks at the words of the last rank and of the last expert.
func checkWords(t *testing.T, s *Slab) {
	for _, off := range []int64{Announced(rankset.MaxRanks - 1), RowOrderMembers(), Counter(int(s.LocalExperts) - 1)} {
		require.LessOrEqual(t, off+8, int64(HeaderBytes))
	}
	require.Greater(t, RowOrder(), Announced(rankset.MaxRanks-1))
	require.LessOrEqual(t, s.Layout(s.LocalExperts-1, s.NumRanks-1)+8, s.SrcInfoOff)
	if s.Groups() > 1<<12 {
		return // too many columns to visit
	}
	inside := func(r, of Region) bool {
		return r.Off >= of.Off && r.Bytes >= 0 && r.Off+r.Bytes <= of.Off+of.Bytes
	}
	s.Head(s.LocalExperts-1, s.RowsPerExpert, func(r Region) {
		in := inside(r, s.Rows()) || inside(r, s.Y()) || inside(r, s.SrcInfo()) || inside(r, s.Scales())
		for i := range s.Columns {
			in = in || (s.Columns[i] > 0 && inside(r, s.Column(i)))
		}
		require.True(t, in, "%+v", r)
	})
}
