package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/op"
)

// routeAll makes a routing with which each of a rank's tokens goes to both ranks.
func routeAll(b *Buffer, tokens int) (*Routing, Operation, error) {
	in := make([]byte, 2*tokens)
	for i := range in {
		in[i] = 1
	}
	return b.MakeRouting(&routing.Args{NumTokens: tokens, NumExperts: 2, InRank: in, Timeout: soon}, -1)
}

func scatterOne(b *Buffer, r *Routing, x, out []byte) (Operation, error) {
	return b.Scatter(r, &routing.ScatterArgs{X: x, RowBytes: 16, Out: out, Timeout: soon}, 0)
}

// TestRouting: a scatter in slices and a gather between two hosts; then what remains of a routing
// after an update, and of a closed buffer.
func TestRouting(t *testing.T) {
	pair := newPair(t)
	_, _, err := routeAll(pair[0], 1)
	require.ErrorContains(t, err, "not connected yet")
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	rows := both(t, func(rank int) (rows [2]byte, err error) {
		b, out, back := pair[rank], make([]byte, 32), make([]byte, 16)
		r, _, err := routeAll(b, 1)
		if err != nil {
			return rows, err
		}
		x := make([]byte, 16)
		x[0] = byte(10 + rank)
		o, err := scatterOne(b, r, x, out)
		if o.Pending() {
			err = o.Wait(ep.PhaseSent, -1)
			require.Equal(t, op.Done, o.State())
			require.False(t, o.HasResults())
			o.Close()
		}
		if err != nil {
			return rows, err
		}
		_, err = b.Gather(r, &routing.GatherArgs{X: out, Hidden: 8, RowType: protocol.BF16, OutType: protocol.BF16, Out: back, Timeout: soon}, -1)
		return [2]byte{out[0], out[16]}, err
	})
	require.Equal(t, [2][2]byte{{10, 11}, {10, 11}}, rows)
}

// TestRoutingsEnd: with their epoch, their group and their buffer. A call that no goroutine drives
// does not keep a buffer from being closed.
func TestRoutingsEnd(t *testing.T) {
	pair := newPair(t)
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	made := both(t, func(rank int) (*Routing, error) { r, _, err := routeAll(pair[rank], 1); return r, err })
	for _, b := range pair {
		require.NoError(t, b.Update())
	}
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	installPair(t, pair)
	x, out := make([]byte, 16), make([]byte, 32)
	_, err := scatterOne(pair[0], made[0], x, out)
	require.ErrorIs(t, err, ep.ErrStaleHandle)
	_, err = scatterOne(pair[0], made[1], x, out)
	require.ErrorContains(t, err, "of another buffer")
	made = both(t, func(rank int) (*Routing, error) { r, _, err := routeAll(pair[rank], 1); return r, err })
	late, pending, err := pair[0].MakeRouting(&routing.Args{NumExperts: 2, Timeout: soon}, 0)
	require.Equal(t, ep.ErrInProgress, err)
	_, err = pair[0].Gather(late, &routing.GatherArgs{}, 0)
	require.ErrorContains(t, err, "not made yet")
	require.NoError(t, pair[0].Close())
	require.ErrorIs(t, pending.Wait(ep.PhaseDone, -1), ep.ErrClosed)
	require.Equal(t, op.Failed, pending.State())
	pending.Close()
	_, err = scatterOne(pair[0], made[0], x, out)
	require.ErrorIs(t, err, ep.ErrClosed)
	_, _, err = routeAll(pair[0], 1)
	require.ErrorIs(t, err, ep.ErrClosed)
	require.Equal(t, 2, made[0].NumRows())
	o, err := scatterOne(pair[1], made[1], x, out)
	if o.Pending() {
		err = o.Wait(ep.PhaseDone, -1)
	}
	require.ErrorIs(t, err, ep.ErrLost)
	require.NoError(t, pair[1].Close())
}

// TestCloseDuringScatters: a goroutine that copies rows out of a slab does so until it is told.
func TestCloseDuringScatters(t *testing.T) {
	const tokens = 2000
	for n := range 20 {
		pair := newPair(t)
		require.Equal(t, [2]error{}, connectPair(pair, soon))
		closed := make(chan error, 1)
		time.AfterFunc(time.Duration(n)*time.Millisecond, func() { closed <- pair[0].Close() })
		var errs [2]error
		both(t, func(rank int) (none struct{}, _ error) {
			r, _, err := routeAll(pair[rank], tokens)
			x, out := make([]byte, tokens*1024), make([]byte, 2*tokens*1024)
			for err == nil {
				_, err = pair[rank].Scatter(r, &routing.ScatterArgs{X: x, RowBytes: 1024, Out: out, Timeout: soon}, -1)
			}
			errs[rank] = err
			return none, nil
		})
		require.ErrorIs(t, errs[0], ep.ErrClosed)
		require.ErrorIs(t, errs[1], ep.ErrLost)
		require.NoError(t, <-closed)
		require.Nil(t, pair[0].engine.(*onCPU).routings.group)
		require.NoError(t, pair[1].Close())
	}
}
