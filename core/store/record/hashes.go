package record

import "github.com/moewire/moewire/core/internal/sha256pair"

// Hashes makes the hashes of one namespace's keys, as Secret.Hash does: what is the same for all of them was hashed
// once. Safe for concurrent use.
type Hashes struct{ beginning *sha256pair.Beginning }

// Hashes are those of a namespace.
func (s *Secret) Hashes(namespace *Digest) Hashes {
	return Hashes{sha256pair.New(append(append([]byte{forHash}, s[:]...), namespace[:]...))}
}

// Of is the hash of a key.
func (n *Hashes) Of(key []byte) Hash {
	h, _ := n.beginning.Sums(key, key)
	return h
}

// Each calls f with the hash of each key, in order. It is faster than Of.
func (n *Hashes) Each(keys [][]byte, f func(i int, h Hash)) {
	for i := 0; i < len(keys); i += 2 {
		j := min(i+1, len(keys)-1)
		one, other := n.beginning.Sums(keys[i], keys[j])
		f(i, one)
		if j > i {
			f(j, other)
		}
	}
}
