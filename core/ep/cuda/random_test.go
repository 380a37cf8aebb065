package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/internal/testenv"
)

// A step of a script: a dispatch, or a combine of the oldest operation that was
// not combined for the last time.
type step int

const (
	stepDispatch step = iota
	stepAgain         // and it is combined once more
	stepCombine
)

// drawSteps makes n operations, of which no more than slots are open. All ranks
// take the same steps: on a device each waits in the order of its stream.
func drawSteps(rng *rand.Rand, n, slots int) (steps []step) {
	for open, repeats := 0, false; n > 0 || open > 0; {
		switch {
		case n > 0 && open < slots && !repeats && (open == 0 || rng.IntN(2) == 0):
			steps = append(steps, stepDispatch)
			n, open = n-1, open+1
		case rng.IntN(4) == 0:
			steps, repeats = append(steps, stepAgain), true
		default:
			steps, repeats = append(steps, stepCombine), false
			open--
		}
	}
	return steps
}

// script is one rank on its way through the steps.
type script struct {
	r     *rank
	rng   *rand.Rand
	todo  []step
	open  []*op
	ended []*op
}

// step launches one thing, in phases of the rank's own choice. It never waits.
func (s *script) step() {
	t, what := s.r.t, s.todo[0]
	s.todo = s.todo[1:]
	if what == stepDispatch {
		o := newOp(s.r, s.rng)
		require.NoError(t, s.r.Dispatch(&o.args, &o.res, ep.Phase(1+s.rng.IntN(2))))
		s.open = append(s.open, o)
		return
	}
	o := s.open[0]
	o.combin.Device.X = o.res.RecvX
	until := ep.Phase(1 + s.rng.IntN(2))
	ticket, err := s.r.Combine(o.res.Handle, &o.combin, until)
	require.NoError(t, err)
	if until == ep.PhaseSent && what == stepCombine {
		require.NoError(t, s.r.Reduce(ticket))
	}
	if what == stepCombine {
		s.open, s.ended = s.open[1:], append(s.ended, o)
	}
}

// TestSchedules: ranks of one process take their steps in random order, and the
// threads of the device their turns.
func TestSchedules(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 30))
	for ranks := 1; ranks <= 3; ranks++ {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { playScript(newGroup(t, ranks), rng) })
	}
}

func playScript(group []*rank, rng *rand.Rand) {
	steps := drawSteps(rng, 6, group[0].NumSlots())
	var all, playing []*script
	for _, r := range group {
		all = append(all, &script{r: r, rng: rng, todo: steps})
	}
	for playing = append(playing, all...); len(playing) > 0; {
		i := rng.IntN(len(playing))
		if playing[i].step(); len(playing[i].todo) == 0 {
			playing = append(playing[:i], playing[i+1:]...)
		}
	}
	for _, s := range all {
		s.r.sync()
		require.NoError(s.r.t, s.r.Err())
		for _, o := range s.ended {
			o.check()
		}
	}
}
