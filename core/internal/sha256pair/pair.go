// Package sha256pair makes the SHA-256 of many short messages that begin alike: what they have in common is hashed once,
// and two of them are hashed at a time, which takes the processor hardly longer than one. Without the instructions for
// that, crypto/sha256 does it.
package sha256pair

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"hash"
	"sync"
)

// MaxBytes is the longest message that is hashed so; crypto/sha256 hashes longer ones.
const MaxBytes = 512

// Beginning is what messages begin with. Safe for concurrent use.
type Beginning struct {
	state state  // after its whole blocks
	rest  []byte // behind those
	bytes int

	begun []byte // for crypto/sha256
}

// state is that of a hash: the words F, E, B, A, H, G, D and C.
type state [8]uint32

var initial = state{0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667, 0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372}

var constants = [64]uint32{
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
}

// New hashes a beginning.
func New(beginning []byte) *Beginning {
	h := sha256.New()
	h.Write(beginning)
	begun, err := h.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		panic(err) // it has no cause
	}
	whole := len(beginning) &^ (sha256.BlockSize - 1)
	b := &Beginning{state: initial, rest: append([]byte{}, beginning[whole:]...), bytes: len(beginning), begun: begun}
	if accelerated && whole > 0 {
		var out [2]state
		compress(&out, &initial, &constants, &beginning[0], &beginning[0], whole/sha256.BlockSize)
		b.state = out[0]
	}
	return b
}

// Sums are the first 16 bytes of the hashes of the beginning with p, and with q, behind it. Those of equal length are hashed at a time.
func (b *Beginning) Sums(p, q []byte) (of, other [16]byte) {
	n := b.numBlocks(p)
	if !accelerated || n != b.numBlocks(q) || n > maxRoom/sha256.BlockSize {
		return b.slow(p), b.slow(q)
	}
	var out [2]state
	if n == 1 {
		var first, second [sha256.BlockSize]byte
		b.pad(first[:], p)
		b.pad(second[:], q)
		compress(&out, &b.state, &constants, &first[0], &second[0], 1)
		return out[0].beginning(), out[1].beginning()
	}
	room := rooms.Get().(*[2][maxRoom]byte)
	defer rooms.Put(room)
	b.pad(room[0][:n*sha256.BlockSize], p)
	b.pad(room[1][:n*sha256.BlockSize], q)
	compress(&out, &b.state, &constants, &room[0][0], &room[1][0], n)
	return out[0].beginning(), out[1].beginning()
}

// paddingBytes is the least that is behind a message: a bit, and its length.
const paddingBytes = 1 + 8

// maxRoom is for the rest of a beginning, the longest message and the padding.
const maxRoom = (sha256.BlockSize - 1 + MaxBytes + paddingBytes + sha256.BlockSize - 1) &^ (sha256.BlockSize - 1)

var rooms = sync.Pool{New: func() any { return new([2][maxRoom]byte) }}

func (b *Beginning) numBlocks(p []byte) int {
	return (len(b.rest) + len(p) + paddingBytes + sha256.BlockSize - 1) / sha256.BlockSize
}

// pad fills blocks with the rest of the beginning, the message and the padding.
func (b *Beginning) pad(blocks, p []byte) {
	n := copy(blocks, b.rest)
	n += copy(blocks[n:], p)
	blocks[n] = 0x80
	clear(blocks[n+1:])
	binary.BigEndian.PutUint64(blocks[len(blocks)-8:], 8*uint64(b.bytes+len(p)))
}

// beginning is the first half of the hash that ends with a state.
func (s *state) beginning() (sum [16]byte) {
	for i, word := range [...]uint32{s[3], s[2], s[7], s[6]} {
		binary.BigEndian.PutUint32(sum[4*i:], word)
	}
	return sum
}

// running is a hash that goes on from where another one was.
type running struct {
	hash.Hash
	encoding.BinaryUnmarshaler
	out [sha256.Size]byte
}

var hashes = sync.Pool{New: func() any {
	h := sha256.New()
	return &running{Hash: h, BinaryUnmarshaler: h.(encoding.BinaryUnmarshaler)}
}}

func (b *Beginning) slow(p []byte) [16]byte {
	r := hashes.Get().(*running)
	defer hashes.Put(r)
	if err := r.UnmarshalBinary(b.begun); err != nil {
		panic(err) // it was marshalled by the same code
	}
	r.Write(p)
	return [16]byte(r.Sum(r.out[:0]))
}
