package op

import (
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

var (
	errFirst  = errors.New("first")
	errSecond = errors.New("second")
)

func seedOf(t testing.TB) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("MOEWIRE_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("MOEWIRE_TEST_SEED=%d", seed)
	return seed
}

// TestInvariants (CO1 to CO6): one end, which stays; late completions touch no other
// transfer; slots and memory come free after the last request.
func TestInvariants(t *testing.T) {
	seed := seedOf(t)
	for i := range testenv.NumSeeds(t, 2000) {
		require.NoError(t, run(seed+i), "MOEWIRE_TEST_SEED=%d", seed+i)
	}
}

// TestWaits (CO10): a deadline changes nothing unless it is asked to, and no waiter
// sleeps through the end.
func TestWaits(t *testing.T) {
	table, err := NewTable(2)
	require.NoError(t, err)
	a, err := table.Begin(2)
	require.NoError(t, err)
	res, err := table.Wait(a, time.Now().Add(time.Millisecond))
	require.ErrorIs(t, err, ErrTimedOut)
	require.Equal(t, Pending, res.State)
	require.Equal(t, Counted, table.Complete(a.RequestID(1), nil, 7, 0))
	won, err := table.Cancel(a, ErrTimedOut) // a caller ends it at the deadline explicitly
	require.NoError(t, err)
	require.True(t, won)
	res, err = table.Look(a)
	require.NoError(t, err)
	require.Equal(t, Cancelled, res.State)
	require.ErrorIs(t, res.Err, ErrTimedOut)
	require.False(t, res.Released)
	_, err = table.WaitTurn(a, UntilReleased, time.Now().Add(time.Millisecond), nil)
	require.ErrorIs(t, err, ErrTimedOut)

	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			res, err := table.WaitTurn(a, UntilReleased, time.Now().Add(20*time.Second), nil)
			if err != nil || res.State != Cancelled || res.NumBytes != 12 {
				t.Errorf("%+v, %v", res, err)
			}
		}()
	}
	time.Sleep(time.Millisecond)
	require.Equal(t, Counted, table.Complete(a.RequestID(0), nil, 5, 0))
	wg.Wait()
}

// TestShutdown (CO9): closing ends everything, once.
func TestShutdown(t *testing.T) {
	table, err := NewTable(2)
	require.NoError(t, err)
	a, err := table.Begin(1)
	require.NoError(t, err)
	ended := make(chan Result)
	go func() {
		res, _ := table.Wait(a, time.Now().Add(20*time.Second))
		ended <- res
	}()
	table.Close(errFirst)
	table.Close(errSecond)
	require.ErrorIs(t, (<-ended).Err, errFirst)
	_, err = table.Begin(1)
	require.ErrorIs(t, err, errFirst)
	require.NoError(t, table.Drop(a))
	require.Equal(t, 1, table.Stats().InUse, "its request is still out")
	require.Equal(t, Counted, table.Complete(a.RequestID(0), errSecond, 0, 0))
	require.Zero(t, table.Stats().InUse)
}

// TestTransferRace: ends of all kinds at the same moment; one wins, all agree.
func TestTransferRace(t *testing.T) {
	table, err := NewTable(8)
	require.NoError(t, err)
	for range 300 {
		r, err := table.Begin(2)
		require.NoError(t, err)
		var wg sync.WaitGroup
		won := make([]bool, 4)
		for i := range won {
			wg.Add(1)
			go func() {
				defer wg.Done()
				switch i {
				case 0:
					table.Complete(r.RequestID(0), nil, 1, 0)
				case 1:
					table.Complete(r.RequestID(1), errFirst, 1, 0)
				default:
					won[i], _ = table.Cancel(r, errSecond)
				}
			}()
		}
		wg.Wait()
		require.False(t, won[2] && won[3])
		res, err := table.Look(r)
		require.NoError(t, err)
		require.Equal(t, won[2] || won[3], res.State == Cancelled)
		require.True(t, res.Released)
		require.NoError(t, table.Drop(r))
	}
	require.Zero(t, table.Stats().InUse)
}

func TestBadArguments(t *testing.T) {
	_, err := NewTable(0)
	require.ErrorContains(t, err, "0 slots, allowed 1")
	table, err := NewTable(1)
	require.NoError(t, err)
	_, err = table.Begin(MaxParts + 1)
	require.ErrorContains(t, err, "1025 parts, allowed 1 to 1024")
	require.Equal(t, Unknown, table.Complete(Ref{slot: 1}.RequestID(0), nil, 0, 0))
	r, err := table.Begin(1)
	require.NoError(t, err)
	require.Equal(t, Unknown, table.Complete(r.RequestID(1), nil, 0, 0))
	require.NoError(t, table.Drop(r))
	require.ErrorIs(t, table.Drop(r), ErrStale)
	_, err = table.Wait(r, time.Now())
	require.ErrorIs(t, err, ErrStale)
}

// TestCloseWithoutReason: a table that is closed assigns nothing.
func TestCloseWithoutReason(t *testing.T) {
	table, err := NewTable(1)
	require.NoError(t, err)
	table.Close(nil)
	_, err = table.Begin(1)
	require.ErrorIs(t, err, ErrCancelled)
}

func TestTableAllocatesNothing(t *testing.T) {
	table, err := NewTable(4)
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		r, _ := table.Begin(2)
		table.Complete(r.RequestID(0), nil, 1, 0)
		table.Complete(r.RequestID(1), nil, 1, 0)
		_, _ = table.Look(r)
		_ = table.Drop(r)
	}))
}

// TestCondemned: the receives that waited are abandoned, and no later one; what
// arrives meanwhile still goes to them.
func TestCondemned(t *testing.T) {
	m, err := NewMatcher(8)
	require.NoError(t, err)
	wait := func(slots ...uint32) {
		for _, i := range slots {
			_, matched, err := m.Receive(Ref{slot: i})
			require.False(t, matched)
			require.NoError(t, err)
		}
	}
	_, was := m.Abandon()
	require.False(t, was)
	wait(1, 2, 3, 4)
	m.Condemn()
	wait(5, 6)
	r, matched, err := m.Arrive(Arrival{})
	require.NoError(t, err)
	require.True(t, matched)
	require.Equal(t, Ref{slot: 1}, r)
	require.True(t, m.Withdraw(Ref{slot: 3}))
	require.True(t, m.Withdraw(Ref{slot: 6}))
	for _, slot := range []uint32{2, 4} {
		r, was = m.Abandon()
		require.True(t, was)
		require.Equal(t, Ref{slot: slot}, r)
	}
	_, was = m.Abandon()
	require.False(t, was)
	require.True(t, m.Withdraw(Ref{slot: 5}))
	require.True(t, m.IsEmpty())
}

// TestMatcher (CO8): first come, first served on both sides; bounded.
func TestMatcher(t *testing.T) {
	m, err := NewMatcher(2)
	require.NoError(t, err)
	for imm := range uint32(2) {
		_, matched, err := m.Arrive(Arrival{Imm: imm})
		require.NoError(t, err)
		require.False(t, matched)
	}
	_, _, err = m.Arrive(Arrival{Imm: 2})
	require.ErrorIs(t, err, ErrFull)
	for imm := range uint32(2) {
		a, matched, err := m.Receive(Ref{})
		require.NoError(t, err)
		require.True(t, matched)
		require.Equal(t, imm, a.Imm)
	}
	for slot := range uint32(2) {
		_, matched, err := m.Receive(Ref{slot: slot})
		require.NoError(t, err)
		require.False(t, matched)
	}
	_, _, err = m.Receive(Ref{slot: 2})
	require.ErrorIs(t, err, ErrFull)
	require.True(t, m.Withdraw(Ref{slot: 0}))
	require.False(t, m.Withdraw(Ref{slot: 0}))
	r, matched, err := m.Arrive(Arrival{Imm: 9})
	require.NoError(t, err)
	require.True(t, matched)
	require.Equal(t, Ref{slot: 1}, r)
	_, err = NewMatcher(0)
	require.ErrorContains(t, err, "0 arrivals, allowed 1")
}
