// Package tag makes the tags of blocks: what the writer of a block says about its bytes,
// and its reader compares. A tag goes with its block over every connection and to every
// medium and nothing on the way makes another one, so that a bit that flips anywhere, and
// a block that stands in another one's place, are noticed where the bytes are used.
//
// A tag finds accidents. Who knows the namespace's digest can make one, so it stops no
// attacker: that is what the sessions of core/wire do. docs/wire.md has the format.
package tag

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/moewire/moewire/core/internal/gmac"
)

const (
	// Bytes is the length of a tag.
	Bytes = 16
	// ChunkBytes is how much of a block is taken at a time. A caller that hands pieces of
	// this length to a Tagger spares it a copy.
	ChunkBytes = 16 << 10
)

// What the hashes begin with, so that they serve for nothing else.
var (
	keyLabel   = []byte("moewire block tag")
	nonceLabel = []byte("moewire block nonce")
)

// Tag says which bytes belong to a key of a namespace. Tags of equal blocks are equal.
type Tag [Bytes]byte

// Tagger makes the tags of one namespace's blocks, one at a time, as their bytes come,
// wherever they lie. It is for one goroutine at a time, reusable, and allocates nothing.
//
// Every ChunkBytes of a block get an AES-256-GMAC tag; the block's is the SHA-256 of these,
// cut. They cannot just be added up: GMAC is linear, so that equal changes in two chunks
// would cancel each other out.
type Tagger struct {
	mac  *gmac.MAC
	sha  hash.Hash
	left int64 // of the length that Begin was told
	fill int

	base  [gmac.NonceBytes]byte // the block's nonce
	chunk uint32
	nonce [gmac.NonceBytes]byte
	one   [gmac.TagBytes]byte
	sum   [sha256.Size]byte
	buf   [ChunkBytes]byte // a chunk of which the pieces come one by one
}

// New makes a Tagger for the namespace of that digest.
func New(namespace [32]byte) *Tagger {
	t := &Tagger{sha: sha256.New()}
	t.sha.Write(keyLabel)
	t.sha.Write(namespace[:])
	mac, err := gmac.New(t.sha.Sum(nil))
	if err != nil {
		panic(err) // a key of 32 bytes is always one
	}
	t.mac = mac
	return t
}

// Clone is another one of the same namespace, for another goroutine.
func (t *Tagger) Clone() *Tagger { return &Tagger{mac: t.mac.Clone(), sha: sha256.New()} }

// Begin begins the tag of a key's block of n bytes. The key is not kept.
func (t *Tagger) Begin(key []byte, n int) {
	t.sha.Reset()
	t.sha.Write(nonceLabel)
	t.sha.Write(key)
	binary.LittleEndian.PutUint64(t.sum[:], uint64(n))
	t.sha.Write(t.sum[:8])
	copy(t.base[:], t.sha.Sum(t.sum[:0]))
	t.left, t.fill, t.chunk = int64(n), 0, 0
	t.sha.Reset()
}

// Write takes the next bytes of the block. It does not keep them.
func (t *Tagger) Write(p []byte) {
	t.left -= int64(len(p))
	for len(p) > 0 {
		switch {
		case t.fill == 0 && len(p) >= ChunkBytes:
			t.add(p[:ChunkBytes])
			p = p[ChunkBytes:]
		case t.fill == 0 && t.left == 0:
			t.add(p)
			return
		default:
			p = p[t.keep(p):]
		}
	}
}

// keep copies what belongs to a chunk that is not complete in memory.
func (t *Tagger) keep(p []byte) int {
	n := copy(t.buf[t.fill:], p)
	t.fill += n
	if t.fill == ChunkBytes {
		t.flush()
	}
	return n
}

func (t *Tagger) flush() {
	if t.fill > 0 {
		t.add(t.buf[:t.fill])
		t.fill = 0
	}
}

func (t *Tagger) add(chunk []byte) {
	t.nonce = t.base
	last := t.nonce[gmac.NonceBytes-4:]
	binary.LittleEndian.PutUint32(last, binary.LittleEndian.Uint32(last)^t.chunk)
	t.mac.Tag(&t.one, &t.nonce, chunk)
	t.sha.Write(t.one[:])
	t.chunk++
}

// Tag is the tag of what was written since Begin. It belongs to no block if that was more
// or less than Begin was told. Idempotent until the next Write or Begin.
func (t *Tagger) Tag() Tag {
	t.flush()
	return Tag(t.sha.Sum(t.sum[:0])[:Bytes])
}

// Of is the tag of a block that is there as a whole, in any number of pieces.
func (t *Tagger) Of(key []byte, pieces ...[]byte) Tag {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	t.Begin(key, n)
	for _, p := range pieces {
		t.Write(p)
	}
	return t.Tag()
}
