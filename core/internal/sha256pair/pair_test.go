package sha256pair

import (
	"crypto/sha256"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

func random(src *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(src.Uint32())
	}
	return b
}

// TestSums: those of crypto/sha256, for beginnings of all lengths up to a few blocks and messages of all lengths.
func TestSums(t *testing.T) {
	src := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	of := func(beginning, p []byte) [16]byte {
		sum := sha256.Sum256(append(append([]byte{}, beginning...), p...))
		return [16]byte(sum[:])
	}
	for n := range 4 * sha256.BlockSize {
		beginning := random(src, n)
		b := New(beginning)
		for _, m := range []int{src.IntN(64), src.IntN(200), src.IntN(MaxBytes + 1), MaxBytes} {
			same := min(MaxBytes, m+src.IntN(3))
			for _, messages := range [][2][]byte{
				{random(src, m), random(src, same)},
				{random(src, m), random(src, src.IntN(MaxBytes+1))},
				{random(src, m), nil},
			} {
				p, q := b.Sums(messages[0], messages[1])
				require.Equal(t, of(beginning, messages[0]), p, "%d, %d", n, m)
				require.Equal(t, of(beginning, messages[1]), q, "%d, %d", n, m)
			}
		}
	}
}

// TestAllocatesNothing is about both ways.
func TestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools now and then")
	}
	b, p := New(make([]byte, 65)), make([]byte, MaxBytes)
	for _, n := range []int{20, 60, MaxBytes} {
		require.Zero(t, testing.AllocsPerRun(100, func() { b.Sums(p[:n], p[:20]) }), n)
	}
}

func BenchmarkSums(b *testing.B) {
	beginning, p, q := New(make([]byte, 65)), make([]byte, 20), make([]byte, 20)
	for b.Loop() {
		beginning.Sums(p, q)
	}
}

func BenchmarkOne(b *testing.B) {
	beginning, p := New(make([]byte, 65)), make([]byte, 20)
	for b.Loop() {
		beginning.slow(p)
	}
}
