package cpu

import (
	"math"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
)

// A pre-reduced combine adds a token's rows up in two steps: those of each rank
// that it went to, weighted and in order of k, with a rounding to the type of
// the rows; then these sums, in the order in which the token selects the ranks
// first. A remote rank makes its sum itself and sends only the sum. For a local rank
// the reader makes the sum, with the same bits.
// Weights are then part of a dispatch: remote ranks get them with the rows.

// checkPreReduced refuses flat rows and too few weights for a pre-reduced dispatch.
func checkPreReduced(a *ep.DispatchArgs) error {
	if a.Flat {
		return ep.Invalid("pre_reduce is set with flat rows, allowed with rows per expert only: the sums of flat rows are made where the experts run")
	}
	if n := a.NumTokens * a.TopK; len(a.TopkWeights) < n {
		return ep.Invalid("topk_weights has %d entries, pre_reduce with topk_idx [%d, %d] needs %d", len(a.TopkWeights), a.NumTokens, a.TopK, n)
	}
	return nil
}

// sameAsSent compares selections and weights with those of the dispatch: remote ranks
// have made their sums by these.
func sameAsSent(s *slot, a *ep.CombineArgs) error {
	for i, id := range s.plan.topk {
		t, k := i/a.TopK, i%a.TopK
		if a.TopkIdx[i] != id {
			return ep.Invalid("topk_idx[%d, %d] is %d, the dispatch had %d (with pre_reduce a combine leaves no selection out)", t, k, a.TopkIdx[i], id)
		}
		if w := s.weights[i]; id >= 0 && math.Float32bits(a.TopkWeights[i]) != math.Float32bits(w) {
			return ep.Invalid("topk_weights[%d, %d] is %v, the dispatch had %v (with pre_reduce they are the same)", t, k, a.TopkWeights[i], w)
		}
	}
	return nil
}

// locateRuns is locate for a pre-reduced combine. A token's rows of one rank
// are side by side. A remote rank has one row per token, its sum. It lies in the
// shadow slab at the token's number among the tokens that went there.
func (p *plan) locateRuns(slab *layout.Slab, weights []float32, remote rankset.Set) {
	p.rows, p.factor = resize(p.rows, len(p.jobOf)), resize(p.factor, len(p.jobOf))
	var sums [rankset.MaxRanks]int64 // so far, by remote rank
	for at := 0; at < len(p.jobOf); at += p.width {
		n := at
		seen := rankset.Set{}
		for i := at; i < at+p.width; i++ {
			j := p.jobOf[i]
			if j < 0 || seen.Has(int(p.jobs[j].Target)) {
				continue
			}
			r := p.jobs[j].Target
			if seen = seen.With(int(r)); !remote.Has(int(r)) {
				n = p.locateRun(slab, weights, n, i, at+p.width)
				continue
			}
			p.rows[n], p.factor[n] = device.ReduceJob{Source: r, Row: sums[r]}, 1
			sums[r]++
			n++
		}
		for ; n < at+p.width; n++ {
			p.rows[n], p.factor[n] = device.ReduceJob{Source: -1}, 0
		}
	}
}

// locateRun appends the rows, at n, of the rank that selection `first` has gone
// to, among those before `end`.
func (p *plan) locateRun(slab *layout.Slab, weights []float32, n, first, end int) int {
	r := p.jobs[p.jobOf[first]].Target
	for i := first; i < end; i++ {
		if p.jobOf[i] < 0 {
			continue
		}
		job := &p.jobs[p.jobOf[i]]
		if job.Target == r {
			p.rows[n] = device.ReduceJob{Source: r, Row: int64(job.Expert)*slab.RowsPerExpert + int64(job.Pos)}
			p.factor[n] = weights[i]
			n++
		}
	}
	return n
}
