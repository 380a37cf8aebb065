package cpu

import (
	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/rankset"
)

// plan is where one dispatch sends its rows: one job per distinct (token,
// expert), and for each (token, k) the job that serves it. Jobs are in order
// of expert and, within one, of token: an owner's are together, and memory is
// written in order. Flat rows (makeFlat) have one block per rank instead of
// one per expert, and U = min(R, K) places per token instead of K.
//
// A plan stays in its slot when the operation has ended, for others like it.
type plan struct {
	key    planKey
	topk   []int64            // copy of the caller's [T, K]
	width  int                // K, or U: entries of jobOf per token
	jobs   []device.PlaceJob  // Pos is set when reserved
	jobOf  []int32            // [T, width] -> job, -1: none
	counts []int32            // [E] rows per expert
	first  []int32            // [E + 1] first job of each expert
	begin  []int32            // [E] first position, set when reserved
	rows   []device.ReduceJob // [T, width], set when everything is sent
	factor []float32          // pre-reduced: [T, width], weights of rows
	ranks  []rankset.Set      // flat: [T], the ranks that a token goes to
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
func (p *plan) make(a *ep.DispatchArgs, localExperts int, active rankset.Set) {
	p.begins(a, a.TopK, a.NumExperts, active)
	for t := range a.NumTokens {
		p.count(t*a.TopK, a.TopK, localExperts, active)
	}
	p.number()
	for t := range a.NumTokens {
		p.fill(int32(t), a.TopK, localExperts)
	}
}

// begins makes room for `width` places per token and for counts of blocks.
func (p *plan) begins(a *ep.DispatchArgs, width, blocks int, active rankset.Set) {
	p.key = keyOf(a, active)
	p.topk = append(p.topk[:0], a.TopkIdx[:a.NumRouted()*a.TopK]...)
	p.width = width
	p.jobOf = resize(p.jobOf, a.NumRouted()*width)
	p.counts = resize(p.counts, blocks)
	p.first = resize(p.first, blocks+1)
	p.begin = resize(p.begin, blocks)
	clear(p.counts)
}

// number gives every block its jobs, now that they are counted.
func (p *plan) number() {
	total := int32(0)
	for i, n := range p.counts {
		p.first[i] = total
		total += n
	}
	p.first[len(p.counts)] = total
	p.jobs = resize(p.jobs, int(total))
}

// count gives each selection of one token its index among the expert's rows.
func (p *plan) count(at, topK, localExperts int, active rankset.Set) {
	ids := p.topk[at : at+topK]
	for k, id := range ids {
		p.jobOf[at+k] = -1
		if id < 0 || !active.Has(int(id)/localExperts) {
			continue
		}
		if again := firstIndex(ids[:k], id); again >= 0 {
			p.jobOf[at+k] = p.jobOf[at+again] // one row, several weights
			continue
		}
		p.jobOf[at+k] = p.counts[id]
		p.counts[id]++
	}
}

// fill makes one token's jobs, now that it is known where each expert's begin.
func (p *plan) fill(token int32, topK, localExperts int) {
	at := int(token) * topK
	for i := at; i < at+topK; i++ {
		if p.jobOf[i] < 0 {
			continue
		}
		e := int(p.topk[i])
		p.jobOf[i] += p.first[e]
		p.jobs[p.jobOf[i]] = device.PlaceJob{
			Token: token, Target: int32(e / localExperts), Expert: int32(e % localExperts),
		}
	}
}

// of returns the jobs for one owner.
func (p *plan) of(owner, localExperts int) []device.PlaceJob {
	return p.jobs[p.first[owner*localExperts]:p.first[(owner+1)*localExperts]]
}

// position gives the jobs for one owner theirs, now that it is known
// where each block begins.
func (p *plan) position(owner, localExperts int) {
	for block := owner * localExperts; block < (owner+1)*localExperts; block++ {
		jobs := p.jobs[p.first[block]:p.first[block+1]]
		for i := range jobs {
			jobs[i].Pos = p.begin[block] + int32(i)
		}
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
