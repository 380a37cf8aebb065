package cuda_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestHostsSchedules: ranks on several hosts take the same steps, in phases of their
// own choice.
func TestHostsSchedules(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 81))
	for _, of := range []string{"ab", "abc"} {
		for range 2 {
			t.Run(of, func(t *testing.T) { playScript(newHosts(t, of).ranks, rng) })
		}
	}
}

// TestHostsFirstPhasesEnd: the first phases of all ranks end before any of them
// launches a second one, though their rings hold less than one operation.
func TestHostsFirstPhasesEnd(t *testing.T) {
	for _, of := range []string{"ab", "aab"} {
		t.Run(of, func(t *testing.T) {
			h := newLargeHosts(t, of, false)
			rng := rand.New(rand.NewPCG(testenv.Seed(t), 82))
			for range 2 {
				h.inPhases(rng)
			}
		})
	}
}

func (h *hosts) inPhases(rng *rand.Rand) {
	all := h.largeOps(rng)
	sums := make([]cuda.ReduceTicket, len(all))
	for _, o := range all {
		require.NoError(h.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	}
	h.ends("the first phases of a dispatch")
	for _, o := range all {
		require.NoError(h.t, o.r.Receive(o.res.Handle))
	}
	h.ends("a dispatch")
	for r, o := range all {
		checkRows(all, r)
		o.combin.Device.X = o.res.RecvX
		var err error
		sums[r], err = o.r.Combine(o.res.Handle, &o.combin, ep.PhaseSent)
		require.NoError(h.t, err)
	}
	h.ends("the first phases of a combine")
	for r, o := range all {
		require.NoError(h.t, o.r.Reduce(sums[r]))
	}
	h.ends("a combine")
	for _, o := range all {
		o.check()
	}
}
