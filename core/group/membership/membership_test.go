package membership

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

func TestSet(t *testing.T) {
	s := Full(1, rankset.MaxRanks)
	require.Equal(t, Epoch(1), s.Epoch())
	require.True(t, s.In(1, 0))
	require.True(t, s.In(1, rankset.MaxRanks-1))
	require.False(t, s.In(2, 0), "the bit alone is not enough: the epoch counts")
	require.Equal(t, rankset.Upto(3), Full(9, 3).Ranks())
}

// TestIsAfter: epochs are in order, also where their numbers begin again.
func TestIsAfter(t *testing.T) {
	for _, first := range []int{0, 1, 100, MaxEpoch/2 + 1, MaxEpoch - 1, MaxEpoch} {
		for _, later := range []int{0, 1, 2, 1000, MaxEpoch / 2, MaxEpoch/2 + 1, MaxEpoch} {
			a, b := Epoch(first%(MaxEpoch+1)), Epoch((first+later)%(MaxEpoch+1))
			require.Equal(t, later > 0 && later <= MaxEpoch/2, b.IsAfter(a), "%d and %d", a, b)
		}
	}
	var word atomic.Uint64
	word.Store(uint64(Full(MaxEpoch, 3)))
	require.True(t, Install(&word, 0, rankset.Upto(2)), "after the largest epoch comes 0")
	require.Equal(t, Full(0, 2), Members(word.Load()))
	require.False(t, Install(&word, MaxEpoch, rankset.Upto(3)), "the group does not go back")
}

// TestLeave: each rank leaves once, however many try to take it out.
func TestLeave(t *testing.T) {
	var word atomic.Uint64
	word.Store(uint64(Full(3, 8)))
	var wins atomic.Int32
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if Leave(&word, 3, i%8) {
				wins.Add(1)
			}
		}()
	}
	wg.Wait()
	require.Equal(t, int32(8), wins.Load())
	require.Equal(t, Full(3, 0), Members(word.Load()))
	word.Store(uint64(Full(4, 8)))
	require.False(t, Leave(&word, 3, 0), "a process of an old epoch takes nobody out")
}

// TestExpel: a decision holds only in the set that it was found in.
func TestExpel(t *testing.T) {
	var word atomic.Uint64
	seen := Full(3, 4)
	word.Store(uint64(seen))
	require.False(t, Expel(&word, seen, 2, 0, rankset.Of(2)), "the failure detector is of another epoch")
	require.False(t, Expel(&word, seen, 3, 0, rankset.Of(9)), "no member")
	require.True(t, Fence(&word, 3, 1, 3))
	require.False(t, Expel(&word, seen, 3, 0, rankset.Of(2)), "the set has changed")
	require.True(t, Expel(&word, Members(word.Load()), 3, 0, rankset.Of(1, 2)))
	require.Equal(t, rankset.Of(0), Members(word.Load()).Ranks())
}

// TestLeaveOut: a rank that has left an epoch takes ranks that were not at a rendezvous out of it.
func TestLeaveOut(t *testing.T) {
	var word atomic.Uint64
	word.Store(uint64(Full(3, 4)))
	require.True(t, Leave(&word, 3, 0))
	require.False(t, LeaveOut(&word, 2, rankset.Of(1, 2, 3)), "an epoch that is over")
	require.True(t, LeaveOut(&word, 3, rankset.Of(2, 3)))
	require.Equal(t, rankset.Of(1), Members(word.Load()).Ranks())
	require.False(t, LeaveOut(&word, 3, rankset.Of(2, 3)), "they are out")
	agreed := &agreedWord{Uint64: &word}
	require.True(t, LeaveOut(agreed, 3, rankset.Of(1)))
	require.Zero(t, agreed.asked)
	require.Zero(t, Members(word.Load()).Ranks())
}

// agreedWord is one that others have a part in.
type agreedWord struct {
	*atomic.Uint64
	asked int
}

func (w *agreedWord) CompareAndSwap(_, _ uint64) bool {
	w.asked++
	return false
}

func (w *agreedWord) CompareAndSwapHere(old, next uint64) bool {
	return w.Uint64.CompareAndSwap(old, next)
}
