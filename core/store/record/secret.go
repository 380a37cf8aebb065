package record

import (
	"crypto/sha256"
	"encoding/binary"
)

// SecretBytes is the length of a store's secret.
const SecretBytes = 32

const checkBytes = 16

// Secret is a store's own random number: no other process can choose keys with hashes that meet, and
// no payload looks like a record. It is not a key of any client.
type Secret [SecretBytes]byte

// What a hash is for.
const (
	forHash = iota + 1
	forRecord
	forSegment
	forFooter
	forTags
)

// Hash of a block's namespace and key.
func (s *Secret) Hash(namespace *Digest, key []byte) Hash {
	var buf [1 + SecretBytes + len(namespace) + MaxKeyBytes]byte
	b := append(buf[:0], forHash)
	b = append(b, s[:]...)
	b = append(b, namespace[:]...)
	b = append(b, key...)
	sum := sha256.Sum256(b)
	return Hash(sum[:])
}

// ForTags is what the tags of a store's blocks are made with. It does not tell the secret.
func (s *Secret) ForTags() [sha256.Size]byte {
	return sha256.Sum256(append([]byte{forTags}, s[:]...))
}

// check covers the header of a record, its key and its place.
func (s *Secret) check(at Place, header, key []byte) [checkBytes]byte {
	var buf [1 + SecretBytes + 16 + HeaderBytes + MaxKeyBytes]byte
	b := append(buf[:0], forRecord)
	b = append(b, s[:]...)
	b = binary.LittleEndian.AppendUint64(b, at.Life)
	b = binary.LittleEndian.AppendUint64(b, uint64(at.Off))
	b = append(b, header...)
	b = append(b, key...)
	sum := sha256.Sum256(b)
	return [checkBytes]byte(sum[:])
}

// checkOf covers the bytes of a segment's header or footer.
func (s *Secret) checkOf(what byte, parts ...[]byte) [checkBytes]byte {
	h := sha256.New()
	h.Write([]byte{what})
	h.Write(s[:])
	for _, part := range parts {
		h.Write(part)
	}
	return [checkBytes]byte(h.Sum(nil))
}
