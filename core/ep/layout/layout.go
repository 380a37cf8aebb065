// Package layout is the arithmetic of shared memory: where each word and row
// of a slab lies. It does no I/O.
//
// A slab begins with words at offsets that do not depend on the shape. So ranks
// that disagree about the shape still find one another's parameters:
//
//	params[s]   64 bytes per rank: the call's parameters
//	arrive[s]   one cache line per rank
//	done[s]     one cache line per rank
//	counted[s]  one cache line per rank; with deterministic order and flat rows only
//	order       the owner's answer to them, and the ranks in it
//	counter[l]  8 bytes per local expert
//
// and goes on with regions of a size that depends on the operation's shape:
// layout [L, R], src_info [L, C], scales [L, H/128 or H/512, C], columns, rows [L, C, H]
// and y [L, C, H], bf16 or float32. C = R*M rows is the capacity of one expert.
// Flat rows belong to no expert: they have L = 1, and columns [C, bytes].
package layout

import (
	"errors"
	"fmt"
	"sort"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/limits"
)

// Offsets of the fixed words of a slab.
const (
	paramsOff   = 0
	arriveOff   = paramsOff + rankset.MaxRanks*protocol.LineBytes
	doneOff     = arriveOff + rankset.MaxRanks*protocol.LineBytes
	countedOff  = doneOff + rankset.MaxRanks*protocol.LineBytes
	rowOrderOff = countedOff + rankset.MaxRanks*protocol.LineBytes
	counterOff  = 4 * PageBytes
	// HeaderBytes is the part of a slab that does not depend on the shape.
	HeaderBytes = counterOff + protocol.MaxLocalExperts*8
)

// The row order and its ranks end before the counters begin.
const _ uint = counterOff - rowOrderOff - 2*8

// ErrShape is wrapped by every error of this package.
var ErrShape = errors.New("invalid shape")

// Shape is what all ranks of one operation must agree on.
type Shape struct {
	MaxTokens  int64 // M, tokens per rank at most
	Hidden     int64 // H, values per token
	NumExperts int64 // E, over all ranks
	NumRanks   int64 // R
	RowType    protocol.DType
	OutputType protocol.DType // of expert outputs

	Flat    bool              // one block of rows per rank, else one per expert
	OneWay  bool              // no expert outputs
	Columns [NumColumns]int64 // with Flat: bytes per row; 0: no such column
}

// Slab is where everything of one operation lies, as byte offsets into a slab.
type Slab struct {
	Shape
	LocalExperts  int64 // L, the blocks of rows; 1 for flat rows, however many experts
	RowsPerExpert int64 // C = R*M
	RowBytes      int64 // bytes of one row without scales
	LayoutOff     int64
	SrcInfoOff    int64
	ScalesOff     int64
	ColumnOff     [NumColumns]int64 // 0 for a column that is not there
	RowsOff       int64
	YOff          int64
	SizeBytes     int64
}

// Params, Arrive and Done are the offsets of rank s's words in a slab.
func Params(s int) int64 { return paramsOff + int64(s)*protocol.LineBytes }

// Arrive is the offset of arrive[s].
func Arrive(s int) int64 { return arriveOff + int64(s)*protocol.LineBytes }

// Done is the offset of done[s].
func Done(s int) int64 { return doneOff + int64(s)*protocol.LineBytes }

// Announced is the offset of counted[s]: s has left its counts in layout[l][s].
func Announced(s int) int64 { return countedOff + int64(s)*protocol.LineBytes }

// RowOrder is the offset of order: layout[l][s] has the place of every rank's
// rows, for the ranks in the word after it.
func RowOrder() int64 { return rowOrderOff }

// RowOrderMembers is the offset of the ranks that have a place, one bit each.
func RowOrderMembers() int64 { return rowOrderOff + 8 }

// Counter is the offset of counter[l].
func Counter(l int) int64 { return counterOff + int64(l)*8 }

// Of computes the slab of a shape. Its error names the number that is not allowed.
func Of(s Shape) (Slab, error) {
	if err := s.check(); err != nil {
		return Slab{}, err
	}
	out := Slab{Shape: s, LocalExperts: s.NumExperts / s.NumRanks}
	if s.Flat {
		out.LocalExperts = 1
	}
	capacity, ok := product(s.NumRanks, s.MaxTokens)
	if !ok || capacity > protocol.MaxRows {
		return Slab{}, fmt.Errorf("%w: num_ranks %d x num_max_tokens_per_rank %d exceeds %d rows per expert",
			ErrShape, s.NumRanks, s.MaxTokens, protocol.MaxRows)
	}
	out.RowsPerExpert = capacity
	err := out.place()
	return out, err
}

// place assigns the offsets. Rows and y start on huge-page boundaries; the
// blocks of experts follow one another without gaps, so that the packed
// tensor is contiguous for every shape.
func (s *Slab) place() error {
	s.RowBytes = s.RowType.RowBytes(s.Hidden)
	l, c := s.LocalExperts, s.RowsPerExpert
	at := cursor{off: HeaderBytes}
	s.LayoutOff = at.take("layout_range", PageBytes, l, s.NumRanks, 8)
	s.SrcInfoOff = at.take("src_info", PageBytes, l, c, 4)
	s.ScalesOff = at.take("scales", PageBytes, l, s.Groups(), c, 4)
	s.placeColumns(&at)
	s.RowsOff = at.take("recv_x", RegionBytes, l, c, s.RowBytes)
	s.YOff = at.take("expert outputs", RegionBytes, l, c, s.OutputBytes())
	s.SizeBytes = at.take("slab", RegionBytes)
	if at.err != nil {
		return fmt.Errorf("%w: num_max_tokens_per_rank %d, hidden %d, num_experts %d, num_ranks %d: %s",
			ErrShape, s.MaxTokens, s.Hidden, s.NumExperts, s.NumRanks, at.err)
	}
	return nil
}

func (s Shape) check() error {
	if err := s.RowType.CheckRow(); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	if err := s.OutputType.CheckOutput(); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	if err := s.checkNumbers(); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	return s.checkColumns()
}

func (s Shape) checkNumbers() error {
	if err := limits.NumRanks.Check(s.NumRanks); err != nil {
		return err
	}
	if err := limits.MaxTokens.Check(s.MaxTokens); err != nil {
		return err
	}
	if m := s.RowType.Multiple(); !limits.Hidden.Has(s.Hidden) || s.Hidden%m != 0 {
		return fmt.Errorf("hidden is %d, allowed multiples of %d up to %d", s.Hidden, m, limits.Hidden.Most)
	}
	if err := limits.NumExperts.Check(s.NumExperts); err != nil {
		return err
	}
	if s.NumExperts%s.NumRanks != 0 {
		return fmt.Errorf("num_experts is %d, allowed multiples of num_ranks %d", s.NumExperts, s.NumRanks)
	}
	if !limits.LocalExperts.Has(s.NumExperts / s.NumRanks) {
		return fmt.Errorf("num_experts is %d on %d ranks, allowed at most %d per rank", s.NumExperts, s.NumRanks, limits.LocalExperts.Most)
	}
	return nil
}

// Layout is the offset of layout[l][r].
func (s *Slab) Layout(l, r int64) int64 { return s.LayoutOff + (l*s.NumRanks+r)*8 }

// Region is a range of a slab.
type Region struct{ Off, Bytes int64 }

func (s *Slab) capacity() int64 { return s.LocalExperts * s.RowsPerExpert }

// Rows is the packed tensor [L, C, row].
func (s *Slab) Rows() Region { return Region{s.RowsOff, s.capacity() * s.RowBytes} }

// Y is the expert outputs, bf16 or float32 [L, C, H].
func (s *Slab) Y() Region { return Region{s.YOff, s.capacity() * s.OutputBytes()} }

// SrcInfo is int32 [L, C].
func (s *Slab) SrcInfo() Region { return Region{s.SrcInfoOff, s.capacity() * 4} }

// Scales is float32 [L, H/128, C], or uint32 [L, H/512, C] for UE8M0; empty
// for bf16.
func (s *Slab) Scales() Region {
	return Region{s.ScalesOff, s.capacity() * s.Groups() * 4}
}

// OutputBytes is the size of one row of expert outputs, 0 if there are none.
func (s *Shape) OutputBytes() int64 {
	if s.OneWay {
		return 0
	}
	return s.OutputType.RowBytes(s.Hidden)
}

// Groups is the number of 4-byte words that hold the scales of one row: 0 for
// bf16.
func (s *Slab) Groups() int64 { return s.RowType.ScaleWords(s.Hidden) }

// Head calls visit with the part of every region of rows that the first n
// rows of local expert l occupy.
func (s *Slab) Head(l, n int64, visit func(Region)) {
	first := l * s.RowsPerExpert
	visit(Region{s.RowsOff + first*s.RowBytes, n * s.RowBytes})
	visit(Region{s.YOff + first*s.OutputBytes(), n * s.OutputBytes()})
	visit(Region{s.SrcInfoOff + first*4, n * 4})
	for g := range s.Groups() {
		visit(Region{s.ScalesOff + (l*s.Groups()+g)*s.RowsPerExpert*4, n * 4})
	}
	for i, width := range s.Columns {
		if width > 0 {
			visit(Region{s.ColumnOff[i], n * width})
		}
	}
}

// SizeHint is the number of bytes of numSlots slabs that hold this shape in
// bf16 and in fp8. A size for fp32 outputs has room for bf16 outputs, not the reverse.
func SizeHint(s Shape, numSlots int64) (int64, error) {
	s.RowType = protocol.BF16
	slab, err := Of(s)
	if err != nil {
		return 0, err
	}
	largest := slab.SizeBytes
	// Rows of fp8 with their scales are smaller, but beside wide columns the
	// scales can be what begins another region of 2 MiB.
	s.RowType = protocol.FP8
	if slab, err := Of(s); err == nil {
		largest = max(largest, slab.SizeBytes)
	}
	size, ok := product(largest, numSlots)
	if !ok {
		return 0, fmt.Errorf("%w: %d slots of %d bytes do not fit in 63 bits", ErrShape, numSlots, largest)
	}
	return size, nil
}

// SlabBytes is the largest whole slab that numSlots slots of numBytes hold.
func SlabBytes(numBytes, numSlots int64) int64 {
	return numBytes / numSlots &^ (RegionBytes - 1)
}

// MostTokens is the largest M with which a slab of this shape fits in so many bytes; 0: none
// does.
func MostTokens(s Shape, bytes int64) int64 {
	fits := func(m int) bool {
		s.MaxTokens = int64(m)
		slab, err := Of(s)
		return err == nil && slab.SizeBytes <= bytes
	}
	most := protocol.MaxRows / s.NumRanks
	return int64(sort.Search(int(most), func(i int) bool { return !fits(i + 1) }))
}
