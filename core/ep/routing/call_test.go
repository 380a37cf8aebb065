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
		_, err := w.groups[0].Scatter(made[0], scatterArgs(2, 3))
		require.ErrorIs(t, err, ep.ErrClosed)
		require.ErrorIs(t, run(begun(t, w, made, 1), nil), ep.ErrLost)
	}
}

// TestBeganInAnotherEpoch: a call that had to wait for its turn until an update does not begin.
func TestBeganInAnotherEpoch(t *testing.T) {
	w, made := twoRanks(t)
	late := begun(t, w, made, 0)
	w.update()
	require.ErrorIs(t, late.Drive(-1), ep.ErrStaleHandle)
	_, err := w.groups[1].Scatter(made[1], scatterArgs(2, 3))
	require.ErrorIs(t, err, ep.ErrStaleHandle)
}

// update brings all ranks to the next epoch.
func (w *world) update() {
	w.t.Helper()
	var next ep.Standing
	for _, b := range w.bufs {
		st, err := b.Prepare()
		require.NoError(w.t, err)
		next.Epoch, next.Next = max(next.Epoch, st.Epoch), max(next.Next, st.Next)
	}
	w.each(func(rank int) error { return w.bufs[rank].Install(next.Epoch+1, next.Next, nil) })
}

// inSecondStep is a routing of rank 0 that has rank 1's header, and waits for its rows.
func inSecondStep(t *testing.T, w *world) *routing.Call {
	t.Helper()
	_, theirs, err := w.groups[1].Make(args(2, 3))
	require.NoError(t, err)
	_, mine, err := w.groups[0].Make(args(2, 3))
	require.NoError(t, err)
	require.Equal(t, ep.ErrInProgress, theirs.Drive(0))
	require.Equal(t, ep.ErrInProgress, mine.Drive(0))
	theirs.Cancel()
	return mine
}

// TestPendingOverAnUpdate: a call that is still pending then does not end the next epoch, whatever
// becomes of it.
func TestPendingOverAnUpdate(t *testing.T) {
	for name, later := range map[string]func(old *routing.Call){
		"cancelled": func(old *routing.Call) { old.Cancel() },
		"driven":    func(old *routing.Call) { require.ErrorIs(t, old.Drive(-1), ep.ErrUpdating) },
		"left":      func(*routing.Call) {}, // the next call drives it
	} {
		for _, isRouting := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w, made := twoRanks(t)
				var old *routing.Call
				if isRouting {
					old = inSecondStep(t, w)
				} else {
					old = begun(t, w, made, 0)
					require.Equal(t, ep.ErrInProgress, old.Drive(0))
				}
				w.update()
				later(old)
				for range 2 {
					w.each(func(rank int) error {
						_, c, err := w.groups[rank].Make(args(2, 3))
						return run(c, err)
					})
				}
				require.Error(t, old.Outcome())
				require.NotEqual(t, ep.ErrInProgress, old.Outcome())
			})
		}
	}
}
