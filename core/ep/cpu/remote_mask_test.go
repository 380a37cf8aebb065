package cpu_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
)

// TestOneSidedMask: with deterministic order an owner that leaves a source out
// gives its rows no place. The source's combine then has no outputs for them, and not
// what lies in the places of another operation's rows either.
func TestOneSidedMask(t *testing.T) {
	for _, remote := range []bool{false, true} {
		t.Run(fmt.Sprintf("remote=%v", remote), func(t *testing.T) {
			if remote {
				useHosts(t, twoHosts)
			}
			w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20, Deterministic: true})
			ins := []input{remoteInput(0), remoteInput(1)}
			w.each(func(rank int) error { return w.roundTrip(rank, small, ins) })
			for range 3 {
				w.each(func(rank int) error {
					var d dispatched
					a := w.args(rank, small, &ins[rank], &d)
					if rank == 1 {
						a.ActiveRanks = []int32{0, 1}
					}
					if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
						return err
					}
					d.compute(rank, small)
					out, err := w.combine(rank, small, &ins[rank], &d)
					if rank == 0 {
						require.Equal(t, wantCombine(&ins[0], small.hidden, small.topk, func(e int64) bool { return e >= 2 }), out)
					}
					return err
				})
			}
		})
	}
}
