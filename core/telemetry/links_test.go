package telemetry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
)

// TestLinks: each rank's row comes back as it was set, and touches nothing
// else; an empty one says that the rank is not remote.
func TestLinks(t *testing.T) {
	a := newArea()
	r := numbered(Capacity - 1)
	for range Capacity {
		a.Add(&r)
	}
	before := a.Records(0)
	rowOf := func(n int) Link {
		u := uint64(n)
		return Link{
			State: n + 1, Carrier: n + 2, SentMessages: u + 3, SentBytes: u + 4, ReceivedMessages: u + 5, ReceivedBytes: u + 6,
			Blocked: u + 7, Dropped: u + 8, Ignored: u + 9, Credits: n + 10, MaxCredits: n + 11, Heard: int64(n + 12), Beats: u + 13,
			Ahead: int64(-2*n - 1), HasAhead: true,
		}
	}
	for rank := range rankset.MaxRanks {
		row := rowOf(rank)
		require.Zero(t, testing.AllocsPerRun(2, func() { a.SetLink(rank, &row) }))
	}
	for rank := range rankset.MaxRanks {
		require.Equal(t, rowOf(rank), a.Link(rank))
	}
	require.Equal(t, before, a.Records(0))
	a.SetLink(7, &Link{})
	require.Equal(t, Link{}, a.Link(7))
	require.Equal(t, rowOf(8), a.Link(8))
}

// TestWallClock: added to the monotonic clock it is the time of day.
func TestWallClock(t *testing.T) {
	now, err := sys.Monotonic()
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), time.Unix(0, now+WallClock()), time.Minute)
}
