package ep

import (
	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
)

// plan is where one dispatch sends its rows: one job per distinct (token,
// expert), and for each (token, k) the job that serves it.
type plan struct {
	topk   []int64            // copy of the caller's [T, K]
	jobs   []device.PlaceJob  // sorted by token; Pos is relative until reserved
	jobOf  []int32            // [T, K] -> job, -1: none
	counts []int32            // [E] rows per expert
	begin  []int32            // [E] first position, set when reserved
	rows   []device.ReduceJob // [T, K], set when everything is sent
}

// resize returns a slice of length n, reusing memory where it can.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// make fills the plan for the tokens of a dispatch. Experts of ranks outside
// `active` get nothing.
func (p *plan) make(a *DispatchArgs, localExperts int, active uint64) {
	p.topk = append(p.topk[:0], a.TopkIdx[:a.NumTokens*a.TopK]...)
	p.jobOf = resize(p.jobOf, len(p.topk))
	p.counts = resize(p.counts, a.NumExperts)
	p.begin = resize(p.begin, a.NumExperts)
	clear(p.counts)
	p.jobs = p.jobs[:0]
	for t := range a.NumTokens {
		p.addToken(int32(t), a.TopK, localExperts, active)
	}
}

func (p *plan) addToken(token int32, topK, localExperts int, active uint64) {
	first := int(token) * topK
	ids := p.topk[first : first+topK]
	for k, id := range ids {
		p.jobOf[first+k] = -1
		if id < 0 || active>>(int(id)/localExperts)&1 == 0 {
			continue
		}
		if again := firstIndex(ids[:k], id); again >= 0 {
			p.jobOf[first+k] = p.jobOf[first+again] // one row, several weights
			continue
		}
		e := int(id)
		p.jobOf[first+k] = int32(len(p.jobs))
		p.jobs = append(p.jobs, device.PlaceJob{
			Token: token, Target: int32(e / localExperts), Expert: int32(e % localExperts), Pos: p.counts[e],
		})
		p.counts[e]++
	}
}

func firstIndex(ids []int64, id int64) int {
	for i, other := range ids {
		if other == id {
			return i
		}
	}
	return -1
}

// locate fixes where every (token, k) was placed, for the combines to come.
func (p *plan) locate(slab *layout.Slab) {
	p.rows = resize(p.rows, len(p.jobOf))
	for i, j := range p.jobOf {
		if j < 0 {
			p.rows[i] = device.ReduceJob{Source: -1}
			continue
		}
		job := &p.jobs[j]
		p.rows[i] = device.ReduceJob{Source: job.Target, Row: int64(job.Expert)*slab.RowsPerExpert + int64(job.Pos)}
	}
}
