package search

import (
	"math/rand/v2"
	"time"
)

// Walk makes random runs of the protocol for some time: for configurations
// with more states than can be visited. States counts steps.
func Walk[S comparable](space Space[S], seed uint64, limit time.Duration) Result {
	rng := rand.New(rand.NewPCG(seed, 0))
	begin, steps := time.Now(), 0
	for time.Since(begin) < limit {
		choices, broken := run(space, rng)
		steps += len(choices)
		if broken != "" {
			return Result{
				States: steps, Time: time.Since(begin),
				Broken: broken, Trace: replay(space, choices, broken),
			}
		}
	}
	return Result{States: steps, Time: time.Since(begin)}
}

// run makes one random run to its end.
func run[S comparable](space Space[S], rng *rand.Rand) (choices []uint8, broken string) {
	s := space.Initial()
	for {
		moves := space.Next(&s)
		if len(moves) == 0 {
			return choices, space.AtEnd(&s)
		}
		i := rng.IntN(len(moves))
		choices = append(choices, uint8(i))
		s = moves[i].To
		if broken = space.Broken(&s); broken != "" {
			return choices, broken
		}
	}
}
