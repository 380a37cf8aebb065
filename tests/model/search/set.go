package search

import "hash/maphash"

// set is the states that are known: by 128 bits of hash, or entire.
type set[S comparable] interface{ add(*S) bool }

func newSet[S comparable](exact bool) set[S] {
	if exact {
		return exactSet[S]{}
	}
	return &hashSet[S]{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		slots: make([][2]uint64, 1<<16),
	}
}

type exactSet[S comparable] map[S]struct{}

func (e exactSet[S]) add(s *S) bool {
	n := len(e)
	e[*s] = struct{}{}
	return len(e) > n
}

// hashSet is an open-addressed table of hashes. With 128 bits, two of a
// hundred million states share a hash with a probability below 1e-22.
type hashSet[S comparable] struct {
	seeds [2]maphash.Seed
	slots [][2]uint64
	n     int
}

func (h *hashSet[S]) add(s *S) bool {
	key := [2]uint64{maphash.Comparable(h.seeds[0], *s), maphash.Comparable(h.seeds[1], *s) | 1}
	if !h.insert(key) {
		return false
	}
	h.n++
	if h.n*4 > len(h.slots)*3 {
		h.grow()
	}
	return true
}

func (h *hashSet[S]) insert(key [2]uint64) bool {
	mask := uint64(len(h.slots) - 1)
	for i := key[0] & mask; ; i = (i + 1) & mask {
		switch h.slots[i] {
		case key:
			return false
		case [2]uint64{}:
			h.slots[i] = key
			return true
		}
	}
}

func (h *hashSet[S]) grow() {
	old := h.slots
	h.slots = make([][2]uint64, 2*len(old))
	for _, key := range old {
		if key != [2]uint64{} {
			h.insert(key)
		}
	}
}
