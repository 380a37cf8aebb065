package routing

import (
	"math"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/limits"
)

// Layout says how rows lie in the caller's memory. The zero value is compact: one row per token
// and source, N in all.
type Layout struct {
	// Expanded has one row per selection of a local expert, an expert's rows together, in order
	// of source rank, token and k.
	Expanded bool
	// Alignment is what the first row of every expert, and the number of all rows, are a
	// multiple of; at least 1. For expanded rows only.
	Alignment int
	// ZeroGaps clears the rows between an expert's last one and the next one's first.
	ZeroGaps bool
}

func (l Layout) check(r *Routing) error {
	switch {
	case !l.Expanded && (l.ZeroGaps || l.Alignment > 1):
		return ep.Invalid("compact rows have no gaps: allowed are expert_alignment 0 or 1, and no zero padding")
	case l.Expanded && r.topK == 0:
		return ep.Invalid("rows cannot be expanded by expert: the routing was made without topk_idx")
	case l.Expanded && !limits.ExpertAlignment.Has(int64(l.Alignment)):
		return ep.InRange(limits.ExpertAlignment, l.Alignment)
	case r.NumRowsIn(l) > math.MaxInt32:
		return ep.Invalid("expert_alignment %d gives %d rows, allowed %d", l.Alignment, r.NumRowsIn(l), math.MaxInt32)
	}
	return nil
}

// align rounds n up.
func (l Layout) align(n int) int { return (n + l.Alignment - 1) / l.Alignment * l.Alignment }

// NumRowsIn is how many rows a scatter in this layout has.
func (r *Routing) NumRowsIn(l Layout) int {
	if !l.Expanded || l.Alignment < 1 {
		return r.NumRows()
	}
	total := 0
	for _, n := range r.here {
		total += l.align(int(n))
	}
	return total
}

// NumExpandedRows is how many rows an expanded layout with this alignment has.
func (r *Routing) NumExpandedRows(alignment int) (int, error) {
	l := Layout{Expanded: true, Alignment: alignment}
	if err := l.check(r); err != nil {
		return 0, err
	}
	return r.NumRowsIn(l), nil
}

// WeightsIn is how many weights come with the rows of a layout, and how many with each.
func (r *Routing) WeightsIn(l Layout) (all, perRow int) {
	if l.Expanded {
		return r.NumRowsIn(l), 1
	}
	return r.NumRows() * r.topK, r.topK
}

// places says where each selection's row lies.
type places struct {
	row  []int32 // [N, K], -1 where a selection is not here
	gaps [][2]int
}

// Expanded returns the row of each selection of each row in an expanded layout: [N, K], -1
// where the selection is not on this rank.
func (r *Routing) Expanded(l Layout) ([]int32, error) {
	if err := l.check(r); err != nil || !l.Expanded {
		return nil, err
	}
	return r.placesOf(l).row, nil
}

func (r *Routing) placesOf(l Layout) *places {
	next, p := make([]int, len(r.here)), &places{row: make([]int32, len(r.ids))}
	at := 0
	for e, n := range r.here {
		next[e] = at
		end, last := at+l.align(int(n)), at+int(n)
		if l.ZeroGaps && end > last {
			p.gaps = append(p.gaps, [2]int{last, end})
		}
		at = end
	}
	for i, id := range r.ids {
		if p.row[i] = -1; id >= 0 {
			p.row[i] = int32(next[id])
			next[id]++
		}
	}
	return p
}

// clearGaps zeroes the rows between experts.
func (s *scatter) clearGaps() error {
	if s.places == nil {
		return nil
	}
	a := &s.args
	if a.Device != nil {
		return s.clearGapsOnDevice()
	}
	for _, gap := range s.places.gaps {
		clear(a.Out[gap[0]*a.RowBytes : gap[1]*a.RowBytes])
		clear(a.OutExtra[gap[0]*a.ExtraBytes : gap[1]*a.ExtraBytes])
		if a.WithWeights {
			clear(a.OutWeights[gap[0]:gap[1]])
		}
	}
	return nil
}
