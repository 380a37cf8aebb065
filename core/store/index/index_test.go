package index

import (
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/record"
)

func hashOf(n, numLow int) (h record.Hash) {
	h[0], h[8], h[9], h[15] = byte(n%numLow), byte(n), byte(n>>8), byte(n>>16)
	return h
}

// TestAgainstMap runs random calls on an index and on a map. Hashes share their first places, so that
// searches pass one another's blocks.
func TestAgainstMap(t *testing.T) {
	for _, numLow := range []int{1, 3, 250} {
		rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(numLow)))
		x, want := New(), map[record.Hash]Block{}
		steps := 60_000
		if testing.Short() {
			steps = 6_000
		}
		for step := range steps {
			h := hashOf(rng.IntN(700), numLow)
			old, there := want[h]
			switch rng.IntN(4) {
			case 0, 1:
				b := Block{Hash: h, Stamp: uint64(step), Off: rng.Uint32()}
				got, added := x.Put(b)
				require.Equal(t, !there, added)
				if there {
					b = old
				}
				require.Equal(t, b, got)
				want[h] = b
			case 2:
				keep := rng.IntN(3) == 0
				require.Equal(t, there, x.Change(h, func(b *Block) bool { b.Off++; return keep }))
				if delete(want, h); there && keep {
					old.Off++
					want[h] = old
				}
			case 3:
				require.Equal(t, there, x.Touch(h, uint64(step)))
				if there {
					old.Stamp = uint64(step)
					want[h] = old
				}
			}
			got, found := x.Get(h)
			now, is := want[h]
			require.Equal(t, is, found)
			require.Equal(t, is, x.Has(h))
			require.Equal(t, now, got)
		}
		require.Equal(t, len(want), x.Len())
		x.Each(func(b *Block) { require.Equal(t, want[b.Hash], *b); delete(want, b.Hash) })
		require.Empty(t, want)
	}
}

func TestSizePerBlock(t *testing.T) {
	require.EqualValues(t, blockBytes, reflect.TypeFor[Block]().Size())
	x, rng := New(), rand.New(rand.NewPCG(testenv.Seed(t), 1))
	most := 0.0
	for n := 1; n <= 200_000; n++ {
		var h record.Hash
		for i := range h {
			h[i] = byte(rng.Uint32())
		}
		x.Put(Block{Hash: h})
		if n >= 50_000 && n%5000 == 0 {
			most = max(most, float64(x.SizeBytes())/float64(n))
		}
	}
	require.LessOrEqual(t, most, float64(MaxBytesPerBlock))
	t.Logf("at most %.1f bytes per block", most)
}

func TestConcurrentCalls(t *testing.T) {
	x := New()
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(worker)))
			for range 20_000 {
				h := hashOf(rng.IntN(300), 7)
				switch rng.IntN(4) {
				case 0:
					x.Put(Block{Hash: h})
				case 1:
					x.Change(h, func(*Block) bool { return false })
				case 2:
					x.Touch(h, rng.Uint64())
				case 3:
					b, found := x.Get(h)
					require.True(t, !found || b.Hash == h)
				}
			}
		})
	}
	all.Wait()
	n := 0
	x.Each(func(*Block) { n++ })
	require.Equal(t, n, x.Len())
}

func BenchmarkHas(b *testing.B) {
	x := New()
	for n := range 1 << 16 {
		x.Put(Block{Hash: hashOf(n, 256)})
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		x.Has(hashOf(n&0xffff, 256))
	}
}

// TestWalk: blocks that are there all the while are met, whatever is added and removed between the pages.
func TestWalk(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 3))
	for range 50 {
		x, stay := New(), map[record.Hash]bool{}
		for n := range 500 {
			x.Put(Block{Hash: hashOf(n, 7)})
			stay[hashOf(n, 7)] = true
		}
		met, cursor, pages := map[record.Hash]bool{}, uint64(0), 0
		for {
			left := 1 + rng.IntN(40)
			cursor = x.Walk(cursor, 1+rng.IntN(40), func(b *Block) bool {
				if left == 0 {
					return false
				}
				left--
				met[b.Hash] = true
				return true
			})
			if pages++; cursor == 0 {
				break
			}
			gone := hashOf(rng.IntN(500), 7)
			x.Change(gone, func(*Block) bool { return false })
			delete(stay, gone)
			x.Put(Block{Hash: hashOf(1000+rng.IntN(500), 7)})
		}
		for h := range stay {
			require.True(t, met[h])
		}
		require.Greater(t, pages, 10)
	}
}
