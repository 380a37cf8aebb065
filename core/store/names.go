package store

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// MaxNamespaces bounds the namespaces that have blocks, or a holder, at a time.
const MaxNamespaces = 4096

// MaxQuotaNamespaces bounds those of one tenant with a quota.
const MaxQuotaNamespaces = MaxNamespaces / 8

// NS is the number of a namespace, valid for this Store from Namespace to Leave.
type NS uint16

// names are the namespaces of a store, by number and by digest. One without blocks and holders is forgotten, and its number
// given to another one.
type names struct {
	key    tag.Key
	secret *record.Secret

	mu       sync.RWMutex
	all      []*namespace // nil: a number that is free
	byDigest map[record.Digest]NS
	tenants  map[record.Tenant]*tenant
	gone     requestCounts // of those that were forgotten
}

// requestCounts counts what was asked for.
type requestCounts struct {
	hits, misses          atomic.Uint64
	overQuota, evictedFor atomic.Uint64 // puts that were refused by quota; blocks of the tenant that were evicted for puts
}

func (t *requestCounts) add(of *requestCounts) {
	t.hits.Add(of.hits.Load())
	t.misses.Add(of.misses.Load())
	t.overQuota.Add(of.overQuota.Load())
	t.evictedFor.Add(of.evictedFor.Load())
}

// namespace has the counts of its blocks.
type namespace struct {
	digest record.Digest
	hashes record.Hashes // of its keys
	label  string
	tenant *tenant

	holders       atomic.Int64 // added to under names.mu: under its write lock a 0 stays
	blocks, bytes atomic.Int64 // that are there now
	records       atomic.Int64 // bytes of their records
	requestCounts
}

// TagKey is what the tags of this store's blocks are made with, as long as it has its medium.
func (s *Store) TagKey() tag.Key { return s.names.key }

// Namespace gives a namespace its number, which it keeps until as many calls of Leave. label is what people see of it; the last
// one counts. ErrNamespaces at the bounds.
func (s *Store) Namespace(digest record.Digest, label string) (NS, error) {
	ns, err := s.names.hold(digest)
	if err == nil && label != "" {
		s.names.mu.Lock()
		s.names.all[ns].label = label
		s.names.mu.Unlock()
	}
	return ns, err
}

// Leave ends what Namespace has begun. Writings that have not ended keep the number until they do; leases do not need it.
func (s *Store) Leave(ns NS) { s.names.leave(ns) }

// hold gives a namespace its number and adds a holder.
func (n *names) hold(digest record.Digest) (NS, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ns, known := n.byDigest[digest]; known {
		n.all[ns].holders.Add(1)
		return ns, nil
	}
	if len(n.byDigest) == MaxNamespaces {
		return 0, fmt.Errorf("%w: %d", ErrNamespaces, MaxNamespaces)
	}
	if n.byDigest == nil {
		n.byDigest = map[record.Digest]NS{}
	}
	tenant := n.tenant(digest.Tenant())
	if quota, _ := tenant.now(); quota > 0 && tenant.namespaces >= MaxQuotaNamespaces {
		return 0, fmt.Errorf("%w: %d of one tenant with a quota", ErrNamespaces, MaxQuotaNamespaces)
	}
	ns := n.free()
	tenant.namespaces++
	n.all[ns] = &namespace{digest: digest, hashes: n.secret.Hashes(&digest), tenant: tenant}
	n.all[ns].holders.Add(1)
	n.byDigest[digest] = ns
	return ns, nil
}

// free is the lowest free number: those are what Stats lists.
func (n *names) free() NS {
	if len(n.byDigest) < len(n.all) {
		for i := range n.all {
			if n.all[i] == nil {
				return NS(i)
			}
		}
	}
	n.all = append(n.all, nil)
	return NS(len(n.all) - 1)
}

// again adds a holder to a namespace that has one; nil for a number that there is not.
func (n *names) again(ns NS) *namespace {
	n.mu.RLock()
	defer n.mu.RUnlock()
	found := n.at(ns)
	if found != nil {
		found.holders.Add(1)
	}
	return found
}

// leave takes a holder away.
func (n *names) leave(ns NS) {
	if left := n.of(ns); left != nil && left.holders.Add(-1) == 0 {
		n.forget(ns, left)
	}
}

// count adds a block that has come, or takes one back that has gone from the index: with what it takes of its tenant's quota,
// which was claimed for a block that comes.
func (n *names) count(b *index.Block, sign int64) {
	ns := NS(b.Namespace)
	of := n.of(ns)
	of.bytes.Add(sign * int64(b.PayloadBytes))
	of.records.Add(sign * b.RecordBytes())
	of.tenant.blocks.Add(sign)
	of.tenant.count(b, sign)
	if of.blocks.Add(sign) == 0 && of.holders.Load() == 0 {
		n.forget(ns, of)
	}
}

// forget gives the number of a namespace free, unless it has blocks or holders, or another call was first. Of the calls that
// take the last block and the last holder away one at least finds both gone.
func (n *names) forget(ns NS, of *namespace) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at(ns) != of || of.holders.Load() != 0 || of.blocks.Load() != 0 {
		return
	}
	n.gone.add(&of.requestCounts)
	n.all[ns] = nil
	delete(n.byDigest, of.digest)
	of.tenant.namespaces--
	n.forgetTenant(of.tenant)
}

// of returns a namespace; nil for a number that there is not.
func (n *names) of(ns NS) *namespace {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.at(ns)
}

// at is of, for a caller that holds mu.
func (n *names) at(ns NS) *namespace {
	if int(ns) >= len(n.all) {
		return nil
	}
	return n.all[ns]
}
