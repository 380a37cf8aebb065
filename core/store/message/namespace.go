package message

import (
	"crypto/sha256"
	"encoding/binary"
)

const (
	numFields = 7
	// MaxNamespaceBytes bounds the names of a namespace together, as they are encoded.
	MaxNamespaceBytes = 4096
)

// Namespace says what blocks belong to. Two that differ in any one field share nothing.
type Namespace struct {
	Model    string
	Weights  string // a fingerprint of the weights
	DType    string
	Layout   string // of keys and values in a block
	Chunk    string // tokens per block
	Parallel string // geometry, and the rank's place in it
	Salt     string
}

func (n *Namespace) fields() [numFields]*string {
	return [numFields]*string{&n.Model, &n.Weights, &n.DType, &n.Layout, &n.Chunk, &n.Parallel, &n.Salt}
}

// Append appends the namespace as it is sent: a length and bytes per field.
func (n *Namespace) Append(dst []byte) []byte {
	for _, f := range n.fields() {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(*f)))
		dst = append(dst, *f...)
	}
	return dst
}

// Bytes is how long Append makes it; more than MaxNamespaceBytes are refused.
func (n *Namespace) Bytes() int {
	total := 4 * numFields
	for _, f := range n.fields() {
		total += len(*f)
	}
	return total
}

// Decode reads a namespace.
func (n *Namespace) Decode(b []byte) error {
	if len(b) > MaxNamespaceBytes {
		return ErrMalformed
	}
	for _, f := range n.fields() {
		if len(b) < 4 {
			return ErrMalformed
		}
		size := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if uint64(size) > uint64(len(b)) {
			return ErrMalformed
		}
		*f, b = string(b[:size]), b[size:]
	}
	if len(b) > 0 {
		return ErrMalformed
	}
	return nil
}

// Tenant is what the digests of all namespaces of one salt end with.
type Tenant [16]byte

// TenantOf is that of a salt.
func TenantOf(salt string) Tenant {
	sum := sha256.Sum256(append([]byte("moewire tenant 1"), salt...))
	return Tenant(sum[:])
}

// TenantOfDigest is that of the namespace that a digest names.
func TenantOfDigest(digest [32]byte) Tenant { return Tenant(digest[len(digest)-len(Tenant{}):]) }

// Digest names the namespace everywhere but in a person's sight: half of it is of all fields, half of the salt alone, so
// that what a tenant may do and may store can be told from a digest. Fields have lengths, so that no byte can move from
// one to the next.
func (n *Namespace) Digest() (digest [32]byte) {
	sum, tenant := sha256.Sum256(n.Append([]byte("moewire namespace 1"))), TenantOf(n.Salt)
	copy(digest[copy(digest[:], sum[:len(digest)-len(tenant)]):], tenant[:])
	return digest
}
