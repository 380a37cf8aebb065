package record

import (
	"crypto/sha256"
	"encoding"
	"hash"
	"sync"
)

// Hashes makes the hashes of one namespace's keys, as Secret.Hash does: what is the same for all of them was hashed
// once. Safe for concurrent use.
type Hashes struct{ begun []byte }

// Hashes are those of a namespace.
func (s *Secret) Hashes(namespace *Digest) Hashes {
	h := sha256.New()
	h.Write([]byte{forHash})
	h.Write(s[:])
	h.Write(namespace[:])
	begun, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic(err) // it has no cause
	}
	return Hashes{begun}
}

// sum is a hash that goes on from where another one was.
type sum struct {
	hash.Hash
	encoding.BinaryUnmarshaler
	out [sha256.Size]byte
}

var sums = sync.Pool{New: func() any {
	h := sha256.New()
	return &sum{Hash: h, BinaryUnmarshaler: h.(encoding.BinaryUnmarshaler)}
}}

// Of is the hash of a key.
func (n *Hashes) Of(key []byte) Hash {
	s := sums.Get().(*sum)
	defer sums.Put(s)
	if err := s.UnmarshalBinary(n.begun); err != nil {
		panic(err) // it was marshalled by the same code
	}
	s.Write(key)
	return Hash(s.Sum(s.out[:0]))
}
