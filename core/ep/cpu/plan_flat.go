package cpu

import (
	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/rankset"
)

// makeFlat fills the plan with one job per distinct (token, rank): a block of
// rows is a rank's. A token's places are in order of rank, so that its sum is.
func (p *plan) makeFlat(a *ep.DispatchArgs, numRanks int, active rankset.Set) {
	p.begins(a, min(numRanks, a.TopK), numRanks, active)
	n := a.NumRouted()
	p.ranks = resize(p.ranks, n)
	localExperts := int64(a.NumExperts / numRanks)
	for t := range n {
		p.ranks[t] = ranksOf(p.topk[t*a.TopK:][:a.TopK], localExperts).And(active)
		for r := range p.ranks[t].All() {
			p.counts[r]++
		}
	}
	p.number()
	copy(p.begin, p.first) // where each rank's next job goes
	for t := range n {
		p.fillFlat(t, a.Routed(t))
	}
}

// ranksOf returns the ranks that own some of the experts.
func ranksOf(ids []int64, localExperts int64) (ranks rankset.Set) {
	for _, id := range ids {
		if id >= 0 {
			ranks = ranks.With(int(id / localExperts))
		}
	}
	return ranks
}

// fillFlat makes the jobs of row i of the ids.
func (p *plan) fillFlat(i int, token int32) {
	at := i * p.width
	jobOf := p.jobOf[at : at+p.width]
	n := 0
	for r := range p.ranks[i].All() {
		job := p.begin[r]
		p.begin[r]++
		p.jobs[job] = device.PlaceJob{Token: token, Target: int32(r)}
		jobOf[n] = job
		n++
	}
	for ; n < len(jobOf); n++ {
		jobOf[n] = -1
	}
}
