package store

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// tenant is the owner of some namespaces: what they take together is bounded by its quota. There is one as long as it has
// namespaces or a quota.
type tenant struct {
	id         record.Tenant
	namespaces int          // guarded by names.mu
	blocks     atomic.Int64 // that are there now

	mu     sync.Mutex
	quota  int64 // bytes of records; 0: none
	noting bool  // the ages of its blocks are being noted: until then the quota bounds nothing
	used   int64 // of blocks, and of writings
	live   int64 // of those: of blocks
	pinned int64 // of those: of blocks that are pinned, or were until lately
	oldest ages  // of its blocks, and of some that are gone, while there is a quota
}

// age says when a block was last used, or earlier.
type age struct {
	hash  record.Hash
	stamp uint64
}

// ages are a heap, the oldest first. The stamp of a block only rises: the first age that is not older than its block's stamp is that
// of the oldest block. One that was pinned when its turn came has the age of a block that was used then: the next puts do not
// meet it again.
type ages []age

func (a *ages) push(x age) {
	*a = append(*a, x)
	at := len(*a) - 1
	for at > 0 && x.stamp < (*a)[(at-1)/2].stamp {
		(*a)[at] = (*a)[(at-1)/2]
		at = (at - 1) / 2
	}
	(*a)[at] = x
}

func (a *ages) pop() age {
	last := len(*a) - 1
	oldest, x := (*a)[0], (*a)[last]
	*a = (*a)[:last]
	if last > 0 {
		a.sink(0, x)
	}
	return oldest
}

// sink puts an age where it belongs, at a place or below it.
func (a *ages) sink(at int, x age) {
	for {
		child := 2*at + 1
		if child+1 < len(*a) && (*a)[child+1].stamp < (*a)[child].stamp {
			child++
		}
		if child >= len(*a) || x.stamp <= (*a)[child].stamp {
			(*a)[at] = x
			return
		}
		(*a)[at] = (*a)[child]
		at = child
	}
}

// spareAges is how many blocks that are gone the ages of a tenant may have beside as many as it has blocks.
const spareAges = 1024

// SetQuotas bounds what the namespaces of each tenant take together: records with headers and keys, of blocks and of what is
// being written. Tenants that are not named have no bound. Those that have more lose blocks by EvictOverQuotas. A put that would
// be over the quota evicts blocks of that tenant alone, the oldest first; where they are pinned, or not enough, it is refused.
// One call at a time.
func (s *Store) SetQuotas(quotas map[[16]byte]int64) {
	begun := s.names.setQuotas(quotas)
	if len(begun) > 0 {
		s.index.Each(func(b *index.Block) {
			if of := s.names.of(NS(b.Namespace)); of != nil && begun[of.tenant] { // one that is gone meanwhile is found out later
				of.tenant.note(s.index, age{b.Hash, b.Stamp})
			}
		})
	}
	for t := range begun {
		t.bind()
	}
}

// EvictOverQuotas evicts the oldest blocks of tenants that have more than their quota, but for those that are pinned. It asks the
// disk for each block, and ends early once stop is closed.
func (s *Store) EvictOverQuotas(stop <-chan struct{}) {
	for _, t := range s.names.bounded() {
		_, _ = s.claimUntil(stop, t, 0)
	}
}

// setQuotas returns the tenants that have had none before. Theirs bounds nothing until the ages of their blocks are noted: a put
// meanwhile would evict new ones, or none.
func (n *names) setQuotas(quotas map[[16]byte]int64) map[*tenant]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, t := range n.tenants {
		if quotas[id] == 0 {
			t.setQuota(0)
			n.forgetTenant(t)
		}
	}
	begun := map[*tenant]bool{}
	for id, quota := range quotas {
		if quota == 0 {
			continue
		}
		if t := n.tenant(id); t.setQuota(quota) == 0 {
			begun[t] = true
		}
	}
	return begun
}

// bounded are the tenants with a quota.
func (n *names) bounded() (all []*tenant) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, t := range n.tenants {
		if quota, _ := t.now(); quota > 0 {
			all = append(all, t)
		}
	}
	return all
}

// tenant is that of an id. The caller holds mu.
func (n *names) tenant(id record.Tenant) *tenant {
	t := n.tenants[id]
	if t == nil {
		if n.tenants == nil {
			n.tenants = map[record.Tenant]*tenant{}
		}
		t = &tenant{id: id}
		n.tenants[id] = t
	}
	return t
}

// forgetTenant forgets one without namespaces and quota. The caller holds mu.
func (n *names) forgetTenant(t *tenant) {
	if quota, _ := t.now(); quota == 0 && t.namespaces == 0 {
		delete(n.tenants, t.id)
	}
}

func (t *tenant) now() (quota, used int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.quota, t.used
}

// setQuota returns the quota that there was. The first one bounds nothing before bind.
func (t *tenant) setQuota(quota int64) (before int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, t.quota = t.quota, quota
	t.noting = quota > 0 && (before == 0 || t.noting)
	if quota == 0 {
		t.oldest = nil
	}
	return before
}

func (t *tenant) bind() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noting = false
}

// add counts bytes that are there, whatever the quota, or takes them back.
func (t *tenant) add(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used += bytes
}

// count counts a block that has come, with its bytes claimed before, or takes one back that has gone, with what was claimed.
func (t *tenant) count(b *index.Block, sign int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live += sign * b.RecordBytes()
	if sign < 0 {
		t.used -= b.RecordBytes()
	}
}

// pin counts bytes that are pinned, or are no more.
func (t *tenant) pin(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pinned += bytes
}

// note notes the age of a block.
func (t *tenant) note(x *index.Index, a age) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.quota == 0 {
		return
	}
	if t.oldest.push(a); int64(len(t.oldest)) > 2*t.blocks.Load()+spareAges {
		t.forgetGone(x)
	}
}

// forgetGone leaves one age of each block that is there.
func (t *tenant) forgetGone(x *index.Index) {
	kept, seen := t.oldest[:0], map[record.Hash]bool{}
	for _, a := range t.oldest {
		if b, found := x.Get(a.hash); found && !seen[a.hash] {
			seen[a.hash] = true
			kept = append(kept, age{a.hash, b.Stamp})
		}
	}
	t.oldest = t.oldest[:0]
	for _, a := range kept { // into its own memory: no age lies behind the one that is read
		t.oldest.push(a)
	}
}

// claim reserves bytes within a tenant's quota. It evicts the tenant's oldest blocks where that is needed, and returns how many.
// ErrQuota: it is not enough.
func (s *Store) claim(t *tenant, bytes int64) (evicted uint64, err error) {
	return s.claimUntil(nil, t, bytes)
}

// claimUntil is claim; ErrClosed: stop was closed.
func (s *Store) claimUntil(stop <-chan struct{}, t *tenant, bytes int64) (evicted uint64, err error) {
	var pinned []record.Hash
	defer func() {
		for _, h := range pinned {
			t.note(s.index, age{h, s.stampChain(0)})
		}
	}()
	for {
		select {
		case <-stop:
			return evicted, ErrClosed
		default:
		}
		a, done, err := t.take(bytes)
		if err != nil && s.pins.lapse() {
			continue
		}
		if done || err != nil {
			return evicted, err
		}
		switch s.evictOwn(t, a) {
		case outcomeEvicted:
			evicted++
		case outcomePinned:
			if n := len(pinned); n == 0 || pinned[n-1] != a.hash { // a block with two ages
				pinned = append(pinned, a.hash)
			}
		}
	}
}

// take reserves bytes, or names the block that is to be evicted for them.
func (t *tenant) take(bytes int64) (oldest age, done bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.quota == 0 || t.noting || t.used+bytes <= t.quota:
		t.used += bytes
		return age{}, true, nil
	case bytes > 0 && t.stays()+bytes > t.quota, len(t.oldest) == 0:
		return age{}, false, fmt.Errorf("%w: %d bytes are used, %d more needed; allowed: %d", ErrQuota, t.used, bytes, t.quota)
	}
	return t.oldest.pop(), false, nil
}

// stays is what would be used with all blocks evicted that may be: by pinned ones, and by what is being written. The caller holds
// mu.
func (t *tenant) stays() int64 { return t.used - max(0, t.live-t.pinned) }

// outcome is what became of a block that was the oldest one.
type outcome uint8

const (
	outcomeGone    outcome = iota // it was evicted or deleted before
	outcomeYounger                // it was used since, and noted again
	outcomePinned
	outcomeEvicted
)

// evictOwn evicts a block for its own tenant, and for good: it must not be found again by the next Open, where it would count.
func (s *Store) evictOwn(t *tenant, a age) outcome {
	b, digest, found := s.named(a.hash)
	if !found || digest.Tenant() != t.id { // a hash has one digest: another tenant's was noted by mistake
		return outcomeGone
	}
	if b.Stamp > a.stamp {
		t.note(s.index, age{a.hash, b.Stamp})
		return outcomeYounger
	}
	defer s.deletes.begin()()
	is := outcomeGone
	if s.delete(a.hash, func(*index.Block) bool { // the pins are held
		if is = outcomeEvicted; s.pins.holds(a.hash) {
			is = outcomePinned
		}
		return is == outcomeEvicted
	}) {
		s.counts.evictedQuota.Add(1)
	}
	return is
}
