package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// TestNoAllocationsFlatOfTwo: flat operations exchange words before they send,
// and allocate nothing for that either. Of two ranks, each with its goroutine.
func TestNoAllocationsFlatOfTwo(t *testing.T) {
	// A rank that sleeps makes a timer: the domain of goroutines has no futex.
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20, SpinFor: time.Minute})
	s := flatShape{shape: shape{ranks: 2, maxTokens: 8, hidden: 16, experts: 4, topk: 2}, extra: [protocol.NumExtras]int{8}}
	const rounds = 200
	round := [2]func() error{}
	for rank := range round {
		in := flatInput{input: randomInput(r2(rank), 8, 16, 2, 4, uniform)}
		in.extra[0] = make([]byte, 64)
		d := new(dispatched)
		a := w.flatArgs(rank, s, &in, d)
		c := &ep.CombineArgs{Flat: true, Out: make([]byte, 8*32), NumTokens: 8, Timeout: 20 * time.Second}
		round[rank] = func() error {
			if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
				return err
			}
			c.X = d.res.CombineX
			_, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1)
			return err
		}
	}
	other := make(chan error, 1)
	go func() {
		for range rounds + 1 { // AllocsPerRun runs once to warm up
			if err := round[1](); err != nil {
				other <- err
				return
			}
		}
		other <- nil
	}()
	require.Zero(t, testing.AllocsPerRun(rounds, func() { require.NoError(t, round[0]()) }))
	require.NoError(t, within(t, other))
}
