package routing_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
)

// marked begins a scatter of rows that have one value.
func marked(t *testing.T, w *world, made [2]*routing.Routing, rank int, value byte) (*routing.Call, []byte) {
	t.Helper()
	a := scatterArgs(2, 3)
	a.X = bytes.Repeat([]byte{value}, len(a.X))
	c, err := w.groups[rank].Scatter(made[rank], a)
	require.NoError(t, err)
	return c, a.Out
}

// TestInOrder: calls run in the order in which they were made, although a later one is driven
// first. In another order two scatters of one routing would swap their rows.
func TestInOrder(t *testing.T) {
	w, made := twoRanks(t)
	const num = 3
	var mine, theirs [num]*routing.Call
	var outs [2][num][]byte
	for i := range num {
		mine[i], outs[0][i] = marked(t, w, made, 0, byte(1+i))
		require.Equal(t, ep.ErrInProgress, mine[i].Drive(0))
		theirs[i], outs[1][i] = marked(t, w, made, 1, byte(11+i))
	}
	order := [2][num]*routing.Call{{mine[0], mine[2], mine[1]}, theirs}
	w.each(func(rank int) error {
		for _, c := range order[rank] {
			if err := c.Drive(-1); err != nil {
				return err
			}
		}
		return nil
	})
	for _, out := range outs {
		for i := range num {
			want := append(bytes.Repeat([]byte{byte(1 + i)}, 3*rowBytes), bytes.Repeat([]byte{byte(11 + i)}, 3*rowBytes)...)
			require.Equal(t, want, out[i])
		}
	}
}

// TestPolled: a caller that polls only its last call gets all of them done.
func TestPolled(t *testing.T) {
	w, made := twoRanks(t)
	w.each(func(rank int) error {
		_, _ = begun(t, w, made, rank), begun(t, w, made, rank)
		last := begun(t, w, made, rank)
		for {
			if err := last.Drive(0); err != ep.ErrInProgress {
				return err
			}
		}
	})
}

// TestTooManyCalls: the queue has a bound. A call that is given up leaves it, wherever it is.
func TestTooManyCalls(t *testing.T) {
	w, made := twoRanks(t)
	var calls []*routing.Call
	for range 1024 {
		calls = append(calls, begun(t, w, made, 0))
	}
	_, err := w.groups[0].Scatter(made[0], scatterArgs(2, 3))
	require.ErrorIs(t, err, op.ErrFull)
	require.ErrorContains(t, err, "allowed 1024")
	_, _, err = w.groups[0].Make(args(2, 3))
	require.ErrorIs(t, err, op.ErrFull)
	calls[500].Cancel()
	begun(t, w, made, 0)
	w.groups[0].Close()
	require.ErrorIs(t, calls[0].Outcome(), ep.ErrClosed)
	require.ErrorIs(t, calls[1023].Outcome(), ep.ErrClosed)
}
