package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/rankset"
)

// A rank that waits for a killed one is told of it, and the wait ends, long before the
// deadline.
const (
	killedDeadline = 30 * time.Second
	killedBound    = 2 * time.Second // of a machine that does much else; the goal is 10 ms
	withoutIt      = "> without it: "
)

// playKilled: rank 1 is killed at any moment; the others have all of its rows or
// none. Then another process takes its place.
func playKilled(c *child) {
	if c.Joins {
		c.rounds(4, 2)
		return
	}
	rng := rand.New(rand.NewPCG(c.Seed, 1))
	mark, gone := c.used, false
	for i := 0; !gone; i++ {
		mine, _ := c.draw(rng, mark)
		mine.args.Timeout, mine.combin.Timeout = killedDeadline, killedDeadline
		launched := time.Now()
		mine.run()
		c.sync()
		done := time.Now()
		require.NoError(c.t, c.Err())
		if c.active.values[1] == 0 {
			fmt.Println(withoutIt, launched.UnixNano(), done.UnixNano())
			mine.check(1)
		} else {
			mine.check()
		}
		c.say("round %d", i)
		if c.self == 1 {
			continue
		}
		// The others stop behind the same round, though one may have had all of
		// rank 1's rows in it.
		saw := c.exchange(fmt.Sprint("round", i), []byte{byte(c.active.values[1])}, 1)
		gone = saw[0][0] == 0 || saw[2][0] == 0
	}
	require.Zero(c.t, c.Members().And(rankset.Of(1)))
	c.say("gone")
	if c.self != 1 {
		why := func() string { return strings.Join(whyLost(c.rank, 1), "\n") }
		require.Eventually(c.t, func() bool { return why() != "" }, connectIn, time.Millisecond)
		require.Contains(c.t, why(), ep.WhyEnded)
	}
	c.used = mark
	c.update()
	c.rounds(4, 2)
}

// endedAfter is the longest time that a round went on after a moment, of those that
// ended without a rank and had begun before; else since it began.
func (g *processes) endedAfter(moment time.Time, which ...int) (took time.Duration) {
	g.t.Helper()
	for _, at := range which {
		for _, line := range g.all[at].Said {
			times, is := strings.CutPrefix(line, withoutIt)
			if !is {
				continue
			}
			var launched, done int64
			_, err := fmt.Sscan(times, &launched, &done)
			require.NoError(g.t, err)
			took = max(took, time.Unix(0, done).Sub(time.Unix(0, max(launched, moment.UnixNano()))))
		}
	}
	require.Positive(g.t, took, "nobody has ended a round without it")
	return took
}
