// Package gmac is AES-256-GMAC (NIST SP 800-38D): the tag that AES-GCM gives bytes
// that it authenticates and does not encrypt. Where the processor can multiply
// two or four pairs of polynomials at a time it is several times as fast as crypto/cipher,
// which does the rest.
package gmac

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"slices"
)

// Sizes in bytes.
const (
	KeyBytes   = 32
	NonceBytes = 12
	TagBytes   = 16

	numPowers = 32 // of the hash key, so many blocks are taken at a time
)

// MAC makes tags with one key. For one goroutine at a time; it allocates nothing.
type MAC struct {
	aead  cipher.AEAD // does all, where multiplyBytes is 0
	block cipher.Block
	keys  keys
	sum   [TagBytes]byte
	mask  [TagBytes]byte
	last  [2 * TagBytes]byte // what is left of the bytes, and their length
}

// keys are what blocks are multiplied by. The assembly knows where they lie.
type keys struct {
	powers [numPowers][TagBytes]byte // h^32 to h, each times x
	middle [numPowers][TagBytes]byte // of each, the sum of its halves, twice
}

// New makes a MAC. The key has KeyBytes; the error is crypto/aes's.
func New(key []byte) (*MAC, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	m := &MAC{block: block}
	if multiplyBytes > 0 {
		m.prepare()
		return m, nil
	}
	m.aead, err = cipher.NewGCM(block)
	return m, err
}

// Clone is another one with the same key, for another goroutine.
func (m *MAC) Clone() *MAC {
	other := *m
	return &other
}

// prepare computes the powers.
func (m *MAC) prepare() {
	powers := &m.keys.powers
	h := &powers[numPowers-1]
	m.block.Encrypt(h[:], h[:])
	slices.Reverse(h[:])
	timesX(h)
	for i := numPowers - 2; i >= 0; i-- {
		m.sum = powers[i+1]
		slices.Reverse(m.sum[:])
		ghash(&powers[i], &m.keys, &m.sum[0], TagBytes)
	}
	for i := range powers {
		middle := binary.LittleEndian.Uint64(powers[i][:8]) ^ binary.LittleEndian.Uint64(powers[i][8:])
		binary.LittleEndian.PutUint64(m.keys.middle[i][:8], middle)
		binary.LittleEndian.PutUint64(m.keys.middle[i][8:], middle)
	}
}

// timesX multiplies an element by x, in constant time.
func timesX(e *[TagBytes]byte) {
	lo, hi := binary.LittleEndian.Uint64(e[:8]), binary.LittleEndian.Uint64(e[8:])
	carry := -(hi >> 63)
	binary.LittleEndian.PutUint64(e[:8], lo<<1^carry&1)
	binary.LittleEndian.PutUint64(e[8:], hi<<1^lo>>63^carry&(0xc2<<56))
}

// Tag writes the tag of p under a nonce. No nonce may serve two different p with tags that can be
// seen: with both of them others could be forged. Where tags stay hidden, in a hash under a
// second key, they tell nothing.
func (m *MAC) Tag(tag *[TagBytes]byte, nonce *[NonceBytes]byte, p []byte) {
	m.sum = [TagBytes]byte{}
	m.tag(tag, nonce, p, 0)
}

// tag writes the tag of p, of which so many bytes, whole blocks, are in the sum already.
func (m *MAC) tag(tag *[TagBytes]byte, nonce *[NonceBytes]byte, p []byte, done int) {
	if m.aead != nil {
		m.aead.Seal(tag[:0], nonce[:], nil, p)
		return
	}
	whole := len(p) &^ (TagBytes - 1)
	if whole > done {
		ghash(&m.sum, &m.keys, &p[done], whole-done)
	}
	m.finish(p[whole:], len(p))
	copy(m.mask[:], nonce[:])
	binary.BigEndian.PutUint32(m.mask[NonceBytes:], 1)
	m.block.Encrypt(m.mask[:], m.mask[:])
	for i := range tag {
		tag[i] = m.sum[TagBytes-1-i] ^ m.mask[i]
	}
}

// TagCopy copies src to dst, which has its length and is elsewhere, and writes the tag of what is in dst then: src may be
// memory that another one changes. It takes little longer than the slower one of copy and Tag.
func (m *MAC) TagCopy(tag *[TagBytes]byte, nonce *[NonceBytes]byte, dst, src []byte) {
	m.sum = [TagBytes]byte{}
	done := 0
	if m.aead == nil {
		done = len(src) &^ (numPowers*TagBytes - 1)
	}
	if done > 0 {
		ghashCopy(&m.sum, &m.keys, &dst[:done][0], &src[0], done)
	}
	copy(dst[done:], src[done:])
	m.tag(tag, nonce, dst, done)
}

// finish adds what is less than a block, with zeros, and the number of bits.
func (m *MAC) finish(rest []byte, total int) {
	clear(m.last[:])
	from := TagBytes
	if len(rest) > 0 {
		from = 0
		copy(m.last[:], rest)
	}
	binary.BigEndian.PutUint64(m.last[TagBytes:], uint64(total)*8)
	ghash(&m.sum, &m.keys, &m.last[from], len(m.last)-from)
}
