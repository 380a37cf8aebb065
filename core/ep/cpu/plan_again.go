package cpu

import (
	"slices"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/rankset"
)

// planKey is what a plan depends on, apart from the expert ids.
type planKey struct {
	flat         bool
	tokens, topK int
	experts      int
	active       rankset.Set // ranks that get rows
	listed       bool        // then on the list, too
}

func keyOf(a *ep.DispatchArgs, active rankset.Set) planKey {
	return planKey{a.Flat, a.NumTokens, a.TopK, a.NumExperts, active, a.Listed != nil}
}

// plan fills the slot's plan. It uses a known plan of an operation with the same
// routing among the same ranks, if there is one: forward and backward, or a repeated
// forward, have such a plan.
func (b *Buffer) plan(s *slot, a *ep.DispatchArgs, active rankset.Set) {
	switch known := b.plannedLike(s, a, active); {
	case known == &s.plan:
		b.count.plansKept++
	case known != nil:
		s.plan.copyOf(known)
		b.count.plansKept++
	case a.Flat:
		s.plan.makeFlat(a, b.ranks, active)
	default:
		s.plan.make(a, int(s.slab.LocalExperts), active)
	}
}

// plannedLike finds the plan, the slot's own first: that needs no copy. Different
// routing mostly differs in its first ids, so looking costs little.
func (b *Buffer) plannedLike(s *slot, a *ep.DispatchArgs, active rankset.Set) *plan {
	key, ids := keyOf(a, active), a.TopkIdx[:a.NumRouted()*a.TopK]
	if s.plan.is(key, ids) {
		return &s.plan
	}
	for j := range b.slots {
		if p := &b.slots[j].plan; p.is(key, ids) {
			return p
		}
	}
	return nil
}

// is does not look for a plan of listed tokens: the next round's are others.
func (p *plan) is(key planKey, ids []int64) bool {
	return !key.listed && p.key == key && slices.Equal(p.topk, ids)
}

// copyOf makes the plan a copy of another operation's. The places of that operation's
// rows are not part of it.
func (p *plan) copyOf(q *plan) {
	p.key, p.width = q.key, q.width
	p.topk = append(p.topk[:0], q.topk...)
	p.jobs = append(p.jobs[:0], q.jobs...)
	p.jobOf = append(p.jobOf[:0], q.jobOf...)
	p.counts = append(p.counts[:0], q.counts...)
	p.first = append(p.first[:0], q.first...)
	p.begin = resize(p.begin, len(q.begin))
}
