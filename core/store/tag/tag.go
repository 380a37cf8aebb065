// Package tag makes the tags of blocks: what the writer of a block says about its bytes,
// and its reader compares. A tag goes with its block over every connection and to every
// medium and nothing on the way makes another one, so that a bit that flips anywhere, and
// a block that stands in another one's place, are noticed where the bytes are used.
//
// The key of tags is a store's own, for its life. All its clients get it in their sessions. It
// keeps out all that never were clients, so that sessions make no second check of a block's
// bytes; it does not keep out one that was. docs/wire.md has the format, and says what follows.
package tag

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"

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
	outerLabel = []byte("moewire block tags")
	nonceLabel = []byte("moewire block nonce")
)

// Tag says which bytes belong to a key of a namespace. Tags of equal blocks are equal.
type Tag [Bytes]byte

// Key is what tags are made with; a store's server and clients have it. It is not printed.
type Key [32]byte

// Format never shows a key, whatever the verb.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "tag.Key") }

// Mask hides a key on its way through a session, and shows it again: it is its own inverse.
// secret is one that both sides have and that serves for nothing else.
func (k Key) Mask(secret [32]byte) Key {
	for i := range k {
		k[i] ^= secret[i]
	}
	return k
}

// Tagger makes the tags of one namespace's blocks, one at a time, as their bytes come,
// wherever they lie. It is for one goroutine at a time, reusable, and allocates nothing.
//
// Every ChunkBytes of a block get an AES-256-GMAC tag; the block's is the SHA-256 of a second
// key and these, cut. They cannot just be added up: GMAC is linear, so that equal changes in
// two chunks would cancel each other out. The second key makes that SHA-256 a random function
// for all that have no key: two blocks of one key and length have the same nonces, and their
// GMAC tags must not be seen.
type Tagger struct {
	mac  *gmac.MAC
	sha  hash.Hash
	left int64 // of the length that Begin was told
	fill int

	outer [sha256.Size]byte     // the second key
	base  [gmac.NonceBytes]byte // the block's nonce
	chunk uint32
	nonce [gmac.NonceBytes]byte
	one   [gmac.TagBytes]byte
	sum   [sha256.Size]byte
	buf   [ChunkBytes]byte // a chunk of which the pieces come one by one
}

// Format never shows a key, whatever the verb.
func (*Tagger) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "tag.Tagger") }

// New makes a Tagger for the namespace of that digest.
func New(key Key, namespace [32]byte) *Tagger {
	t := &Tagger{sha: sha256.New()}
	t.outer = t.derive(outerLabel, &key, &namespace)
	inner := t.derive(keyLabel, &key, &namespace)
	mac, err := gmac.New(inner[:])
	if err != nil {
		panic(err) // a key of 32 bytes is always one
	}
	t.mac = mac
	return t
}

func (t *Tagger) derive(label []byte, key *Key, namespace *[32]byte) [sha256.Size]byte {
	t.sha.Reset()
	t.sha.Write(label)
	t.sha.Write(key[:])
	t.sha.Write(namespace[:])
	return [sha256.Size]byte(t.sha.Sum(nil))
}

// Clone is another one of the same key and namespace, for another goroutine.
func (t *Tagger) Clone() *Tagger {
	return &Tagger{mac: t.mac.Clone(), sha: sha256.New(), outer: t.outer}
}

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
	t.sha.Write(t.outer[:])
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

// Copy copies src to dst, which has its length and is elsewhere, and takes what is in dst then as Write does: src may be
// memory that another one changes.
func (t *Tagger) Copy(dst, src []byte) {
	for t.fill == 0 && len(src) >= ChunkBytes {
		t.begin()
		t.mac.TagCopy(&t.one, &t.nonce, dst[:ChunkBytes], src[:ChunkBytes])
		t.end()
		t.left -= ChunkBytes
		dst, src = dst[ChunkBytes:], src[ChunkBytes:]
	}
	copy(dst, src)
	t.Write(dst[:len(src)])
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
	t.begin()
	t.mac.Tag(&t.one, &t.nonce, chunk)
	t.end()
}

// begin makes the nonce of a chunk, and end takes its tag.
func (t *Tagger) begin() {
	t.nonce = t.base
	last := t.nonce[gmac.NonceBytes-4:]
	binary.LittleEndian.PutUint32(last, binary.LittleEndian.Uint32(last)^t.chunk)
}

func (t *Tagger) end() {
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
