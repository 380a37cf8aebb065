package gmac

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

func standard(tb testing.TB, key []byte) cipher.AEAD {
	tb.Helper()
	block, err := aes.NewCipher(key)
	require.NoError(tb, err)
	aead, err := cipher.NewGCM(block)
	require.NoError(tb, err)
	return aead
}

func fill(rng *rand.ChaCha8, p []byte) { _, _ = rng.Read(p) }

// withMultiply lets MACs made in a test multiply on registers of so many bytes.
func withMultiply(t *testing.T, width int) {
	had := multiplyBytes
	if had < width {
		testenv.Lacking(t, "vpclmulqdq", fmt.Sprintf("this processor has VPCLMULQDQ on registers of %d bytes", had))
	}
	multiplyBytes = width
	t.Cleanup(func() { multiplyBytes = had })
}

// TestAgainstStandard: the tags are those of crypto/cipher, for every length up to
// some blocks and for longer ones, wherever the bytes lie.
func TestAgainstStandard(t *testing.T) {
	for _, width := range []int{0, 32, 64} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			withMultiply(t, width)
			againstStandard(t, width > 0)
		})
	}
}

func againstStandard(t *testing.T, fast bool) {
	rng := rand.NewChaCha8([32]byte{0: byte(testenv.Seed(t))})
	data := make([]byte, 1<<16+64)
	lengths := []int{4095, 16 << 10, 16<<10 + 16, 16<<10 + 511, 1 << 16}
	for n := range 1200 {
		lengths = append(lengths, n)
	}
	for i, n := range lengths {
		var key [KeyBytes]byte
		var nonce [NonceBytes]byte
		var tag [TagBytes]byte
		fill(rng, key[:])
		fill(rng, nonce[:])
		fill(rng, data)
		p := data[i%64:][:n]
		m, err := New(key[:])
		require.NoError(t, err)
		require.Equal(t, fast, m.aead == nil)
		for _, m := range []*MAC{m, m, m.Clone()} {
			m.Tag(&tag, &nonce, p)
			want := standard(t, key[:]).Seal(nil, nonce[:], nil, p)
			require.Equal(t, want, tag[:], "%d bytes", n)
			to := make([]byte, n+200)
			m.TagCopy(&tag, &nonce, to[i%100:][:n], p)
			require.Equal(t, want, tag[:], "a copy of %d bytes", n)
			require.True(t, bytes.Equal(p, to[i%100:][:n]))
			require.Equal(t, make([]byte, 200), append(to[:i%100:i%100], to[i%100+n:]...), "nothing but them")
		}
	}
}

// TestSimpleBytes: zeros and ones everywhere, in keys, too.
func TestSimpleBytes(t *testing.T) {
	for _, k := range []byte{0, 1, 0x80, 0xff} {
		for _, b := range []byte{0, 1, 0x80, 0xff} {
			key, p := make([]byte, KeyBytes), make([]byte, 2049)
			for i := range key {
				key[i] = k
			}
			for i := range p {
				p[i] = b
			}
			var nonce [NonceBytes]byte
			var tag [TagBytes]byte
			m, err := New(key)
			require.NoError(t, err)
			m.Tag(&tag, &nonce, p)
			require.Equal(t, standard(t, key).Seal(nil, nonce[:], nil, p), tag[:])
		}
	}
}

func TestEveryBitCounts(t *testing.T) {
	m, err := New(make([]byte, KeyBytes))
	require.NoError(t, err)
	var nonce [NonceBytes]byte
	var want, got [TagBytes]byte
	p := make([]byte, 1024+37)
	m.Tag(&want, &nonce, p)
	for i := range len(p) * 8 {
		p[i/8] ^= 1 << (i % 8)
		m.Tag(&got, &nonce, p)
		require.NotEqual(t, want, got, "bit %d", i)
		p[i/8] ^= 1 << (i % 8)
	}
}

func TestBadKey(t *testing.T) {
	_, err := New(make([]byte, KeyBytes+1))
	require.Error(t, err)
}

func TestAllocatesNothing(t *testing.T) {
	m, err := New(make([]byte, KeyBytes))
	require.NoError(t, err)
	nonce, tag, p := new([NonceBytes]byte), new([TagBytes]byte), make([]byte, 5000)
	require.Zero(t, testing.AllocsPerRun(100, func() { m.Tag(tag, nonce, p) }))
}

func BenchmarkTag(b *testing.B) {
	for _, n := range []int{64, 1 << 10, 16 << 10} {
		p := make([]byte, n)
		nonce, tag := new([NonceBytes]byte), new([TagBytes]byte)
		b.Run(fmt.Sprintf("ours/%d", n), func(b *testing.B) {
			m, _ := New(make([]byte, KeyBytes))
			b.SetBytes(int64(n))
			for b.Loop() {
				m.Tag(tag, nonce, p)
			}
		})
		b.Run(fmt.Sprintf("standard/%d", n), func(b *testing.B) {
			aead := standard(b, make([]byte, KeyBytes))
			b.SetBytes(int64(n))
			for b.Loop() {
				aead.Seal(tag[:0], nonce[:], nil, p)
			}
		})
	}
}
