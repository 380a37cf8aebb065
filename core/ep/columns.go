package ep

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
)

// placeColumns stores what tokens bring beside their flat rows. The positions
// of the jobs are final.
func (b *Buffer) placeColumns(s *slot, owners uint64) {
	if s.slab.ColumnBytes() == 0 {
		return
	}
	for rest := owners; rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		jobs := s.plan.of(r, 1)
		if len(jobs) == 0 {
			continue
		}
		if !s.params.bare {
			b.placeTopk(s, r, jobs)
		}
		for i, width := range s.dispatch.args.ExtraRowBytes {
			to := bytesOf(s.dst[r], s.slab.Column(layout.ColumnExtra+i))
			placeExtra(to, s.dispatch.args.Extra[i], width, jobs)
		}
	}
}

// placeTopk stores ids and weights at rank r: its own experts, counted from
// its first one. Other selections have id -1 and weight 0 there.
func (b *Buffer) placeTopk(s *slot, r int, jobs []device.PlaceJob) {
	k, local := int(s.params.topK), int64(s.params.experts)/int64(b.ranks)
	ids := bytesOf(s.dst[r], s.slab.Column(layout.ColumnTopkIdx))
	weights := bytesOf(s.dst[r], s.slab.Column(layout.ColumnTopkWeights))
	base := int64(r) * local
	for i := range jobs {
		t, pos := int(jobs[i].Token), int(jobs[i].Pos)
		id, weight := ids[pos*k*8:][:k*8], weights[pos*k*4:][:k*4]
		from := s.dispatch.args.TopkWeights[t*k:][:k]
		for j, e := range s.plan.topk[t*k:][:k] {
			e -= base
			w := from[j]
			if e < 0 || e >= local {
				e, w = -1, 0
			}
			binary.LittleEndian.PutUint64(id[j*8:], uint64(e))
			binary.LittleEndian.PutUint32(weight[j*4:], math.Float32bits(w))
		}
	}
}

func placeExtra(to, from []byte, width int, jobs []device.PlaceJob) {
	if width == 0 {
		return
	}
	for i := range jobs {
		t, pos := int(jobs[i].Token), int(jobs[i].Pos)
		copy(to[pos*width:][:width], from[t*width:][:width])
	}
}

// clearHoles takes the ids out of rows that lost ranks had reserved and that
// are not counted: whoever runs experts by these ids runs none on such a row.
func (b *Buffer) clearHoles(s *slot) {
	k := int(s.params.topK)
	ids := bytesOf(s.own.seg, s.slab.Column(layout.ColumnTopkIdx))
	weights := bytesOf(s.own.seg, s.slab.Column(layout.ColumnTopkWeights))
	for rest := s.own.seg.Word(layout.OrderSet()).Load() &^ s.counted; rest != 0; rest &= rest - 1 {
		place := s.own.seg.Word(s.slab.Layout(0, int64(bits.TrailingZeros64(rest)))).Load()
		begin := min(int(place>>32), int(s.slab.RowsPerExpert))
		end := min(begin+int(place&(1<<32-1)), int(s.slab.RowsPerExpert))
		fillBytes(ids[begin*k*8 : end*k*8])
		clear(weights[begin*k*4 : end*k*4])
	}
}

// shapeColumns are the widths that the arguments ask for.
func shapeColumns(a *DispatchArgs) (widths [layout.NumColumns]int64) {
	if a.Flat && !a.Bare {
		widths[layout.ColumnTopkIdx], widths[layout.ColumnTopkWeights] = 8*int64(a.TopK), 4*int64(a.TopK)
	}
	for i, n := range a.ExtraRowBytes {
		widths[layout.ColumnExtra+i] = int64(n)
	}
	return widths
}

// checkColumns compares the columns' sizes with what the arguments say.
func checkColumns(a *DispatchArgs) error {
	if !a.Flat {
		if a.Bare || a.TopkWeights != nil {
			return invalid("topk_weights are given, allowed with flat rows only")
		}
		return nil
	}
	if n := a.NumTokens * a.TopK; !a.Bare && len(a.TopkWeights) < n {
		return invalid("topk_weights has %d entries, [%d, %d] needs %d", len(a.TopkWeights), a.NumTokens, a.TopK, n)
	}
	for i, width := range a.ExtraRowBytes {
		if n := a.NumTokens * width; len(a.Extra[i]) < n {
			return invalid("extra[%d] has %d bytes, %d tokens of %d need %d", i, len(a.Extra[i]), a.NumTokens, width, n)
		}
	}
	return nil
}
