package store

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// MaxNamespaces bounds the namespaces of a store, as long as it is open.
const MaxNamespaces = 4096

// NS is the number of a namespace, valid for this Store.
type NS uint16

// names are the namespaces of a store, by number and by digest.
type names struct {
	key tag.Key

	mu       sync.RWMutex
	all      []*namespace
	byDigest map[record.Digest]NS
}

// namespace has the counts of its blocks.
type namespace struct {
	digest record.Digest
	label  string
	tagger *tag.Tagger // to be cloned

	blocks, bytes atomic.Int64 // that are there now
	hits, misses  atomic.Uint64
}

// TagKey is what the tags of this store's blocks are made with, as long as it has its medium.
func (s *Store) TagKey() tag.Key { return s.names.key }

// Namespace gives a namespace its number. label is what people see of it; the last one counts. ErrNamespaces at the bound.
func (s *Store) Namespace(digest record.Digest, label string) (NS, error) {
	ns, err := s.names.number(digest)
	if err == nil && label != "" {
		s.names.mu.Lock()
		s.names.all[ns].label = label
		s.names.mu.Unlock()
	}
	return ns, err
}

func (n *names) number(digest record.Digest) (NS, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ns, known := n.byDigest[digest]; known {
		return ns, nil
	}
	if len(n.all) == MaxNamespaces {
		return 0, fmt.Errorf("%w: %d", ErrNamespaces, MaxNamespaces)
	}
	if n.byDigest == nil {
		n.byDigest = map[record.Digest]NS{}
	}
	ns := NS(len(n.all))
	n.all = append(n.all, &namespace{digest: digest, tagger: tag.New(n.key, digest)})
	n.byDigest[digest] = ns
	return ns, nil
}

// of returns a namespace; nil for a number that there is not.
func (n *names) of(ns NS) *namespace {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if int(ns) >= len(n.all) {
		return nil
	}
	return n.all[ns]
}
