package cpu

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
)

// placeColumns stores what tokens bring beside their flat rows. The positions
// of the jobs are final.
func (b *Buffer) placeColumns(s *slot, owners rankset.Set) {
	if s.slab.ColumnBytes() == 0 {
		return
	}
	for r := range owners.All() {
		var to [layout.NumColumns][]byte
		for i, width := range s.slab.Columns {
			if width > 0 {
				to[i] = bytesOf(s.dst[r], s.slab.Column(i))
			}
		}
		b.placeColumnsAt(s, r, &to, s.plan.of(r, 1))
	}
}

// placeColumnsAt stores the columns of some jobs for rank r.
func (b *Buffer) placeColumnsAt(s *slot, r int, to *[layout.NumColumns][]byte, jobs []device.PlaceJob) {
	if len(jobs) == 0 {
		return
	}
	if !s.params.noRouting {
		b.placeTopk(s, r, to[layout.ColumnTopkIdx], to[layout.ColumnTopkWeights], jobs)
	}
	for i, width := range s.dispatch.args.ExtraRowBytes {
		placeExtra(to[layout.ColumnExtra+i], s.dispatch.args.Extra[i], width, jobs)
	}
}

// placeTopk stores ids and weights for rank r: its own experts, counted from
// its first one. Other selections have id -1 and weight 0 there.
func (b *Buffer) placeTopk(s *slot, r int, ids, weights []byte, jobs []device.PlaceJob) {
	k, local := int(s.params.topK), int64(s.params.experts)/int64(b.ranks)
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

// clearHoles takes the ids out of rows that were reserved and that no counted
// source has filled: a caller that runs experts by these ids runs none on such a
// row. The rows of the sources lie in order of rank.
func (b *Buffer) clearHoles(s *slot) {
	a, next, total := &s.dispatch.args, int64(0), s.rows
	for t := range b.ranks {
		place := uint64(a.LayoutRange[t])
		begin, n := int64(place>>32), int64(place&(1<<32-1))
		if n > 0 {
			b.clearIDs(s, next, min(begin, total))
			next = begin + n
		}
	}
	b.clearIDs(s, next, total)
}

func (b *Buffer) clearIDs(s *slot, begin, end int64) {
	if begin >= end {
		return
	}
	ids, weights := s.slab.Columns[layout.ColumnTopkIdx], s.slab.Columns[layout.ColumnTopkWeights]
	fillBytes(s.dispatch.res.Columns[layout.ColumnTopkIdx][begin*ids : end*ids])
	clear(s.dispatch.res.Columns[layout.ColumnTopkWeights][begin*weights : end*weights])
}

// checkColumns compares the columns' sizes with what the arguments say.
func checkColumns(a *ep.DispatchArgs) error {
	switch {
	case !a.Flat && a.NoRouting:
		return ep.Invalid("topk_idx and topk_weights are not to be sent along, allowed with flat rows only")
	case a.PreReduce:
		return checkPreReduced(a)
	case !a.Flat && a.TopkWeights != nil:
		return ep.Invalid("topk_weights are given, allowed with flat rows only, or with pre_reduce")
	case !a.Flat:
		return nil
	}
	if n := a.NumTokens * a.TopK; !a.NoRouting && len(a.TopkWeights) < n {
		return ep.Invalid("topk_weights has %d entries, [%d, %d] needs %d", len(a.TopkWeights), a.NumTokens, a.TopK, n)
	}
	for i, width := range a.ExtraRowBytes {
		if n := a.NumTokens * width; len(a.Extra[i]) < n {
			return ep.Invalid("extra[%d] has %d bytes, %d tokens of %d need %d", i, len(a.Extra[i]), a.NumTokens, width, n)
		}
	}
	return nil
}
