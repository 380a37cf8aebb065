package layout

import (
	"fmt"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

// Columns of flat rows: what a token brings beside its row.
const (
	ColumnTopkIdx     = 0 // int64 [C, K], local expert ids
	ColumnTopkWeights = 1 // float32 [C, K]
	ColumnExtra       = 2 // the first of protocol.NumExtras that the caller gives
	NumColumns        = ColumnExtra + protocol.NumExtras
)

// Widths are the bytes per row of a dispatch's columns: topK ids and weights, if
// they are sent along, and the caller's.
func Widths(withTopk bool, topK int, extraRowBytes [protocol.NumExtras]int) (widths [NumColumns]int64) {
	if withTopk {
		widths[ColumnTopkIdx], widths[ColumnTopkWeights] = 8*int64(topK), 4*int64(topK)
	}
	for i, n := range extraRowBytes {
		widths[ColumnExtra+i] = int64(n)
	}
	return widths
}

// Column is one column, [C, bytes per row]; empty if it is not there.
func (s *Slab) Column(i int) Region {
	return Region{s.ColumnOff[i], s.capacity() * s.Columns[i]}
}

// ColumnBytes is the size of all columns of one row.
func (s *Shape) ColumnBytes() (n int64) {
	for _, width := range s.Columns {
		n += width
	}
	return n
}

var columnNames = [NumColumns]string{
	"recv_topk_idx", "recv_topk_weights", "extra[0]", "extra[1]", "extra[2]", "extra[3]",
}

func (s *Slab) placeColumns(at *cursor) {
	if !s.Flat {
		return // every dispatch comes here
	}
	for i, width := range s.Columns {
		if width > 0 {
			s.ColumnOff[i] = at.take(columnNames[i], PageBytes, s.LocalExperts, s.RowsPerExpert, width)
		}
	}
}

func (s *Shape) checkColumns() error {
	if s.Columns == [NumColumns]int64{} {
		return nil
	}
	for i, width := range s.Columns {
		most := limits.ExtraRowBytes.Most
		switch {
		case i == ColumnTopkIdx:
			most = 8 * limits.TopK.Most
		case i == ColumnTopkWeights:
			most = 4 * limits.TopK.Most
		}
		switch {
		case width < 0 || width > most:
			return fmt.Errorf("%w: %s has %d bytes per row, allowed 0 to %d", ErrShape, columnNames[i], width, most)
		case width > 0 && !s.Flat:
			return fmt.Errorf("%w: %s without flat rows", ErrShape, columnNames[i])
		}
	}
	return nil
}
