package tag

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

var (
	ours  = Key{9, 8, 7}
	here  = [32]byte{1, 2, 3}
	sizes = []int{0, 1, 15, 16, 17, ChunkBytes - 1, ChunkBytes, ChunkBytes + 1, 3*ChunkBytes + 77}
)

func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(testenv.Seed(t), 0))
}

func noise(src *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(src.Uint32())
	}
	return b
}

// cut cuts memory into pieces at random, some of them empty.
func cut(src *rand.Rand, b []byte) [][]byte {
	var list [][]byte
	for len(b) > 0 {
		n := min(len(b), src.IntN(2)*src.IntN(2*ChunkBytes)+src.IntN(40))
		list = append(list, b[:n:n])
		b = b[n:]
	}
	return append(list, nil)
}

// reference makes a tag with crypto/cipher alone, as docs/wire.md says.
func reference(t *testing.T, namespace [32]byte, key, block []byte) Tag {
	both := append(ours[:], namespace[:]...)
	secret := sha256.Sum256(append([]byte("moewire block tag"), both...))
	outer := sha256.Sum256(append([]byte("moewire block tags"), both...))
	said := append([]byte("moewire block nonce"), key...)
	nonce := sha256.Sum256(binary.LittleEndian.AppendUint64(said, uint64(len(block))))
	cipherBlock, err := aes.NewCipher(secret[:])
	require.NoError(t, err)
	gcm, err := cipher.NewGCM(cipherBlock)
	require.NoError(t, err)
	tags := outer[:]
	for i := 0; len(block) > 0; i++ {
		n := min(len(block), 16384)
		own := nonce
		for j := range 4 {
			own[8+j] ^= byte(i >> (8 * j))
		}
		tags = gcm.Seal(tags, own[:12], nil, block[:n])
		block = block[n:]
	}
	sum := sha256.Sum256(tags)
	return Tag(sum[:16])
}

// A tag is the same however the block is cut, by a Tagger that was used before, by its
// clone, and by another implementation.
func TestTagOfPieces(t *testing.T) {
	src := newRand(t)
	tagger := New(ours, here)
	clone := tagger.Clone()
	for _, size := range sizes {
		key, block := noise(src, 1+src.IntN(64)), noise(src, size)
		want := reference(t, here, key, block)
		for range 5 {
			require.Equal(t, want, tagger.Of(key, cut(src, block)...), size)
			require.Equal(t, want, clone.Of(key, cut(src, block)...), size)
		}
		require.Equal(t, want, tagger.Of(key, block))
		require.Equal(t, want, tagger.Tag(), "it may be asked again")
	}
}

// A copy has the bytes and the tag of the block, however it is cut, also in pieces that are written and not copied.
func TestTagOfCopies(t *testing.T) {
	src := newRand(t)
	tagger := New(ours, here)
	for range 20 {
		for _, size := range sizes {
			key, block, to := noise(src, 9), noise(src, size), make([]byte, size)
			tagger.Begin(key, size)
			rest := to
			for _, p := range cut(src, block) {
				if src.IntN(4) == 0 {
					copy(rest, p)
					tagger.Write(rest[:len(p)])
				} else {
					tagger.Copy(rest[:len(p)], p)
				}
				rest = rest[len(p):]
			}
			require.Equal(t, reference(t, here, key, block), tagger.Tag())
			require.True(t, bytes.Equal(block, to))
		}
	}
}

// What differs in a bit, in its length, its key or its namespace has another tag.
func TestTagsDiffer(t *testing.T) {
	src := newRand(t)
	tagger, other, others := New(ours, here), New(ours, [32]byte{1, 2, 4}), New(Key{9, 8, 6}, here)
	for _, size := range sizes[1:] {
		key, block := []byte("key"), noise(src, size)
		want := tagger.Of(key, block)
		for _, bit := range append(src.Perm(size * 8)[:min(8, size*8)], 0, size*8-1) {
			block[bit/8] ^= 1 << (bit % 8)
			require.NotEqual(t, want, tagger.Of(key, block), "bit %d of %d bytes", bit, size)
			block[bit/8] ^= 1 << (bit % 8)
		}
		require.NotEqual(t, want, tagger.Of([]byte("kez"), block))
		require.NotEqual(t, want, tagger.Of(key, block[:size-1]))
		require.NotEqual(t, want, tagger.Of(key, append(block, 0)))
		require.NotEqual(t, want, other.Of(key, block))
		require.NotEqual(t, want, others.Of(key, block))
		require.Equal(t, want, tagger.Of(key, block))
	}
}

// What would cancel out in a sum of the chunks' tags must not, and chunks have an order.
func TestChunksDoNotCancelOut(t *testing.T) {
	tagger := New(ours, here)
	block := noise(newRand(t), 4*ChunkBytes)
	want := tagger.Of(nil, block)
	swapped := append(append([]byte{}, block[ChunkBytes:2*ChunkBytes]...), block[:ChunkBytes]...)
	require.NotEqual(t, want, tagger.Of(nil, swapped, block[2*ChunkBytes:]))
	block[5] ^= 0x40
	block[ChunkBytes+5] ^= 0x40
	require.NotEqual(t, want, tagger.Of(nil, block))
}

// A block that is shorter or longer than it was said to be has no tag of its own.
func TestLengthIsPartOfTheTag(t *testing.T) {
	tagger := New(ours, here)
	block := noise(newRand(t), 2*ChunkBytes)
	for _, said := range []int{0, ChunkBytes, 2*ChunkBytes - 1, 2*ChunkBytes + 1} {
		tagger.Begin([]byte("key"), said)
		tagger.Write(block)
		require.NotEqual(t, tagger.Tag(), tagger.Of([]byte("key"), block), said)
	}
}

func TestTagAllocatesNothing(t *testing.T) {
	tagger, key, block := New(ours, here), []byte("key"), make([]byte, 3*ChunkBytes+5)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		tagger.Begin(key, len(block))
		tagger.Write(block[:100])
		tagger.Write(block[100:])
		_ = tagger.Tag()
	}))
}

// A masked key shows nothing of the key, and is it again under the same secret.
func TestMask(t *testing.T) {
	secret := [32]byte{5, 6, 7, 31: 1}
	require.NotEqual(t, ours, ours.Mask(secret))
	require.Equal(t, ours, ours.Mask(secret).Mask(secret))
}

// No verb shows a key, nor what is made of it.
func TestKeysAreNotPrinted(t *testing.T) {
	tagger := New(ours, here)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x", "%X", "%o", "%b", "%c", "%U"} {
		require.Equal(t, "tag.Key", fmt.Sprintf(verb, ours), verb)
		require.Equal(t, "tag.Key", fmt.Sprintf(verb, &ours), verb)
		require.Equal(t, "tag.Tagger", fmt.Sprintf(verb, tagger), verb)
	}
}
