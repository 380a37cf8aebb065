package routing_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
)

const soon = 20 * time.Second

// args are of a routing with which each of a rank's tokens goes to every rank.
func args(ranks, tokens int) *routing.Args {
	return &routing.Args{
		NumTokens: tokens, NumExperts: ranks, InRank: bytes.Repeat([]byte{1}, ranks*tokens), Timeout: soon,
	}
}

const rowBytes = 16

// scatterArgs are of one such routing.
func scatterArgs(ranks, tokens int) *routing.ScatterArgs {
	return &routing.ScatterArgs{
		X: make([]byte, tokens*rowBytes), RowBytes: rowBytes, Out: make([]byte, ranks*tokens*rowBytes), Timeout: soon,
	}
}

// twoRanks is two ranks with a routing.
func twoRanks(t *testing.T) (w *world, made [2]*routing.Routing) {
	w = newWorld(t, oneHost(2), 16)
	w.each(func(rank int) error {
		r, c, err := w.groups[rank].Make(args(2, 3))
		made[rank] = r
		return run(c, err)
	})
	return w, made
}

func begun(t *testing.T, w *world, made [2]*routing.Routing, rank int) *routing.Call {
	t.Helper()
	c, err := w.groups[rank].Scatter(made[rank], scatterArgs(2, 3))
	require.NoError(t, err)
	return c
}

// TestCancelEndsAWait: of another goroutine without a bound. The other rank does not wait, either.
func TestCancelEndsAWait(t *testing.T) {
	w, made := twoRanks(t)
	c, waits := begun(t, w, made, 0), make(chan error)
	require.Equal(t, ep.ErrInProgress, c.Drive(0))
	go func() { waits <- c.Drive(-1) }()
	time.Sleep(10 * time.Millisecond)
	require.Equal(t, op.Pending, c.State())
	c.Cancel()
	require.ErrorIs(t, <-waits, op.ErrCancelled)
	require.Equal(t, op.Cancelled, c.State())
	c.Cancel()
	require.ErrorIs(t, c.Drive(-1), op.ErrCancelled)
	require.ErrorIs(t, run(begun(t, w, made, 1), nil), ep.ErrLost)
	require.ErrorContains(t, run(begun(t, w, made, 0), nil), "a scatter was given up")
}

// TestCancelBetweenSteps: a rank whose peer's routing has begun leaves, so that it does not wait.
func TestCancelBetweenSteps(t *testing.T) {
	for _, steps := range []int{0, 1, 2, 3} {
		w := newWorld(t, oneHost(2), 16)
		_, mine, err := w.groups[0].Make(args(2, 3))
		require.NoError(t, err)
		_, theirs, err := w.groups[1].Make(args(2, 3))
		require.NoError(t, err)
		for range steps { // each goes as far as it can without the other
			require.Equal(t, ep.ErrInProgress, theirs.Drive(0))
			if mine.Drive(0) == nil {
				break
			}
		}
		mine.Cancel()
		if steps == 0 { // nothing has happened here: this rank may come yet
			_, again, err := w.groups[0].Make(args(2, 3))
			require.NoError(t, err)
			w.each(func(rank int) error { return []*routing.Call{again, theirs}[rank].Drive(soon) })
		} else if err = theirs.Drive(soon); steps == 1 || err != nil { // later it may have sent all
			require.ErrorIs(t, err, ep.ErrLost)
		}
	}
}

// TestOneCallerDrivesAll: a call that has to wait for another one of its group drives it.
func TestOneCallerDrivesAll(t *testing.T) {
	w, made := twoRanks(t)
	w.each(func(rank int) error {
		first, second := begun(t, w, made, rank), begun(t, w, made, rank)
		_ = first.Drive(0) // it has begun
		if err := second.Drive(-1); err != nil {
			return err
		}
		require.Equal(t, op.Done, first.State())
		return first.Drive(0)
	})
}

// TestCloseEndsCalls: those that a goroutine drives, those that none drives, and later ones.
func TestCloseEndsCalls(t *testing.T) {
	for _, driven := range []bool{false, true} {
		w, made := twoRanks(t)
		c, waits := begun(t, w, made, 0), make(chan error, 1)
		waiting := begun(t, w, made, 0)
		require.Equal(t, ep.ErrInProgress, c.Drive(0))
		require.Equal(t, ep.ErrInProgress, waiting.Drive(0))
		if driven {
			go func() { waits <- c.Drive(-1) }()
			time.Sleep(10 * time.Millisecond)
		} else {
			waits <- nil
		}
		w.groups[0].Close()
		w.groups[0].Close()
		require.NoError(t, w.bufs[0].Close())
		if err := <-waits; driven {
			require.ErrorIs(t, err, ep.ErrClosed)
		}
		require.ErrorIs(t, c.Drive(-1), ep.ErrClosed)
		require.ErrorIs(t, waiting.Drive(-1), ep.ErrClosed)
		require.ErrorIs(t, run(begun(t, w, made, 0), nil), ep.ErrClosed)
		require.ErrorIs(t, run(begun(t, w, made, 1), nil), ep.ErrLost)
	}
}

// TestBeganInAnotherEpoch: a call that had to wait for its turn until an update does not begin.
func TestBeganInAnotherEpoch(t *testing.T) {
	w, made := twoRanks(t)
	late := begun(t, w, made, 0)
	var next ep.Standing
	for _, b := range w.bufs {
		st, err := b.Prepare()
		require.NoError(t, err)
		next.Epoch, next.Next = max(next.Epoch, st.Epoch), max(next.Next, st.Next)
	}
	w.each(func(rank int) error { return w.bufs[rank].Install(next.Epoch+1, next.Next, nil) })
	require.ErrorIs(t, late.Drive(-1), ep.ErrStaleHandle)
	_, err := w.groups[1].Scatter(made[1], scatterArgs(2, 3))
	require.ErrorIs(t, err, ep.ErrStaleHandle)
}
