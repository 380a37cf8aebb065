package rankset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// naive is a set of ranks as a reference.
type naive map[int]bool

func (n naive) sorted() []int { return slices.Sorted(maps.Keys(n)) }

func (n naive) where(in func(int) bool) naive {
	out := naive{}
	for r := range MaxRanks {
		if in(r) {
			out[r] = true
		}
	}
	return out
}

func (n naive) text() string {
	var names []string
	for _, r := range n.sorted() {
		names = append(names, fmt.Sprint(r))
	}
	return "{" + strings.Join(names, ",") + "}"
}

// requireSame compares all that a set says of itself with the reference.
func requireSame(t *testing.T, want naive, s Set) {
	t.Helper()
	require.Equal(t, want.sorted(), slices.Collect(s.All()))
	require.Equal(t, want.text(), s.String())
	require.Equal(t, len(want), s.Len())
	require.Equal(t, len(want) == 0, s.Empty())
	require.Equal(t, Of(want.sorted()...), s)
	require.Equal(t, s, FromWord(s.Word()))
	for r := range MaxRanks {
		require.Equal(t, want[r], s.Has(r), "rank %d", r)
		require.Equal(t, want[r], s.Word()>>r&1 == 1, "rank %d", r)
	}
	if len(want) > 0 {
		require.Equal(t, want.sorted()[0], s.Min())
	}
}

// TestAgainstMaps does the same to a set and to a map, in any order.
func TestAgainstMaps(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	a, b, na, nb := Set{}, Set{}, naive{}, naive{}
	for range 2000 {
		r := random.IntN(MaxRanks)
		switch random.IntN(8) {
		case 0, 1, 2:
			a, na = a.With(r), na.where(func(x int) bool { return na[x] || x == r })
		case 3:
			a, na = a.Without(r), na.where(func(x int) bool { return na[x] && x != r })
		case 4:
			a, na = a.And(b), na.where(func(x int) bool { return na[x] && nb[x] })
		case 5:
			a, na = a.Or(b), na.where(func(x int) bool { return na[x] || nb[x] })
		case 6:
			a, na = a.Minus(b), na.where(func(x int) bool { return na[x] && !nb[x] })
		case 7:
			a, b, na, nb = b, a, nb, na
		}
		requireSame(t, na, a)
		require.Equal(t, maps.Equal(na, nb), a == b)
	}
}

func TestUpto(t *testing.T) {
	for n := range MaxRanks + 1 {
		requireSame(t, naive{}.where(func(r int) bool { return r < n }), Upto(n))
	}
}

// TestAllEndsEarly: a loop over a set may break.
func TestAllEndsEarly(t *testing.T) {
	var seen []int
	for r := range Of(2, 5, 9).All() {
		if seen = append(seen, r); r == 5 {
			break
		}
	}
	require.Equal(t, []int{2, 5}, seen)
}

// TestNoAllocation: sets are on the path of each call.
func TestNoAllocation(t *testing.T) {
	a, sum := Of(0, 7, MaxRanks-1), 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for r := range a.With(3).Or(Upto(2)).Minus(Of(7)).All() {
			sum += r
		}
	}))
	require.NotZero(t, sum)
}

// BenchmarkAll ranges over 8 ranks, and over them by hand.
func BenchmarkAll(b *testing.B) {
	counts, s := [MaxRanks]uint32{}, Upto(8)
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			for r := range s.All() {
				counts[r]++
			}
		}
	})
	b.Run("by-hand", func(b *testing.B) {
		for b.Loop() {
			for rest := s; !rest.Empty(); rest = rest.Without(rest.Min()) {
				counts[rest.Min()]++
			}
		}
	})
}
