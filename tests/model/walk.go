package model

import (
	"math/rand/v2"
	"time"
)

// Walk makes random runs of the protocol for some time: for configurations
// with more states than can be visited. States counts steps.
func (m *Model) Walk(seed uint64, limit time.Duration) Result {
	v := &mover{Model: m}
	rng := rand.New(rand.NewPCG(seed, 0))
	begin, steps := time.Now(), 0
	for time.Since(begin) < limit {
		choices, broken := v.run(rng)
		steps += len(choices)
		if broken != fine {
			return Result{
				States: steps, Time: time.Since(begin),
				Broken: properties[broken], Trace: v.replay(choices, broken),
			}
		}
	}
	return Result{States: steps, Time: time.Since(begin)}
}

// run makes one random run to its end.
func (v *mover) run(rng *rand.Rand) (choices []uint8, broken uint8) {
	s := v.initial()
	for {
		moves := v.next(&s)
		if len(moves) == 0 {
			return choices, v.atEnd(&s)
		}
		i := rng.IntN(len(moves))
		choices = append(choices, uint8(i))
		s = moves[i].To
		if s.broken != fine {
			return choices, s.broken
		}
	}
}
