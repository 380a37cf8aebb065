package multihost

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

const (
	tickEvery = 5 * time.Millisecond
	beatEvery = 20 * time.Millisecond
)

// TestAgreement: whatever is killed, frozen, cut and blamed, agreed sets form a chain,
// and in the end all ranks that go on, go on together.
func TestAgreement(t *testing.T) {
	from, to := seeds(t, 300)
	for seed := from; seed < to; seed++ {
		w, broken := chaos(seed)
		if broken != "" {
			for _, line := range w.history {
				t.Log(line)
			}
			t.Fatalf("MOEWIRE_TEST_SEED=%d: %s", seed, broken)
		}
	}
}

// TestKilled: with no cut, every rank that is alive stays in, however many die at once,
// in a few milliseconds.
func TestKilled(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for dead := uint64(1); dead < 1<<n-1; dead++ {
			w := newWorld(dead, n)
			w.run(50 * time.Millisecond)
			for i := range n {
				if dead>>i&1 == 1 {
					w.kill(i)
				}
			}
			w.run(80 * time.Millisecond) // less than the bound
			for i, p := range w.ranks {
				if !p.dead {
					require.Equal(t, rankset.Upto(n).Minus(rankset.FromWord(dead)), p.word(), "%d ranks, %b die, rank %d", n, dead, i)
				}
			}
		}
	}
}

// TestCut: of two sides at most one goes on: the larger one, or of two halves
// the one with the lowest rank. The other one is fenced.
func TestCut(t *testing.T) {
	most := 6
	if testing.Short() {
		most = 5
	}
	for n := 2; n <= most; n++ {
		for word := uint64(1); word < 1<<n-1; word += 2 { // rank 0 is in it
			w, side := newWorld(word, n), rankset.FromWord(word)
			w.run(50 * time.Millisecond)
			all := rankset.Upto(n)
			w.setCut(side, all.Minus(side), true)
			w.run(2 * time.Second)
			goesOn := side
			if 2*side.Len() < n {
				goesOn = all.Minus(side)
			}
			require.Equal(t, goesOn, w.survivors(), "%d ranks, cut %v", n, side)
			w.setCut(side, all.Minus(side), false)
			w.run(500 * time.Millisecond)
			require.Equal(t, goesOn, w.survivors(), "repaired")
			w.quiet = true
			require.Empty(t, w.broken())
		}
	}
}

// TestDespair: a rank that leaves for want of a quorum says which ranks it missed; one
// that goes on, or is taken out by others, has nothing to say.
func TestDespair(t *testing.T) {
	w := newWorld(1, 4)
	w.run(50 * time.Millisecond)
	w.setCut(rankset.Of(0, 1), rankset.Of(2, 3), true)
	w.run(2 * time.Second)
	require.Equal(t, rankset.Of(0, 1), w.survivors())
	for _, p := range w.ranks[:2] {
		require.Nil(t, p.despaired)
	}
	for _, p := range w.ranks[2:] {
		text := p.despaired.String()
		require.Contains(t, text, "ranks 0, 1 did not answer")
		require.Contains(t, text, "of ranks 0, 1, 2, 3 may not decide alone")
		require.Contains(t, text, "or the half with rank 0")
	}
}

// TestDespairNames: every rank that is named did what is said of it, and none is named
// twice or left out.
func TestDespairNames(t *testing.T) {
	for _, c := range []struct {
		d    despair
		want string
	}{
		{despair{unresponsive: rankset.Of(0), ended: rankset.Of(1), reach: rankset.Of(2, 3)}, "rank 0 did not answer, rank 1 ended, and ranks 2, 3 of"},
		{despair{unresponsive: rankset.Of(0, 1), reach: rankset.Of(3)}, "ranks 0, 1 did not answer, and rank 3 of"},
		{despair{ended: rankset.Of(0, 1), reach: rankset.Of(2, 3)}, "ranks 0, 1 ended, and ranks 2, 3 of"},
		{despair{reach: rankset.Of(3)}, "rank 3 of"},
	} {
		c.d.set = rankset.Upto(4)
		require.Equal(t, c.want+" ranks 0, 1, 2, 3 may not decide alone: more than half may, or the half with rank 0", c.d.String())
	}
}

// TestDespairTogether: however many ranks are cut off together, each of them is
// out an unresponsiveness timeout and two of despair after the cut, and not so long after
// the one before it.
func TestDespairTogether(t *testing.T) {
	for n := 2; n <= 8; n++ {
		all := rankset.Upto(n)
		here := rankset.Upto((n + 1) / 2)
		w := newWorld(uint64(n), n)
		for i, p := range w.ranks {
			p.ticked = w.now.Add(4 * time.Duration(i) * time.Millisecond) // or all would leave in one moment
		}
		w.run(50 * time.Millisecond)
		w.setCut(here, all.Minus(here), true)
		w.run((1 + fenceBounds + 1) * testRules.bound)
		require.Equal(t, here, w.survivors(), "%d ranks", n)
		for r := range all.Minus(here).All() {
			d := w.ranks[r].despaired
			require.NotNil(t, d, "rank %d of %d", r, n)
			require.GreaterOrEqual(t, d.waited, fenceBounds*testRules.bound)
		}
	}
}

// TestNeedEnds: a change that came, and one that is not wanted any more, shorten no
// rank's lapse for the next one.
func TestNeedEnds(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newAgreement(3, rankset.Upto(4), testRules, now)
	ask := func(removals rankset.Set) { c.ask(now, c.word(), removals) }
	ask(rankset.Of(0))
	require.Equal(t, now, c.need.since)
	first := now
	now = now.Add(testRules.lapse)
	c.receive(now, &agreementMessage{kind: kindState, from: 2, set: rankset.Upto(4), left: rankset.Of(2)})
	c.tick(now)
	require.Zero(t, c.want, "of the word before")
	ask(rankset.Of(0))
	require.Equal(t, first, c.need.since, "wanted ever since")
	now = now.Add(testRules.lapse + 1)
	c.tick(now)
	require.Zero(t, c.need, "it has lapsed")
	ask(rankset.Of(0))
	require.Equal(t, now, c.need.since)
	c.adopt(rankset.Of(1, 2, 3))
	require.Zero(t, c.need, "it came")
}

// TestLoneSuspicion: a rank that does not hear another one for a while, or hears none
// because it was stopped itself, takes no rank out.
func TestLoneSuspicion(t *testing.T) {
	require.Empty(t, loneSuspicion())
}

func loneSuspicion() (broken string) {
	for n := 3; n <= 5; n++ {
		for a := range n {
			for b := range n {
				w := newWorld(uint64(a*10+b), n)
				w.run(50 * time.Millisecond)
				all := rankset.Upto(n)
				if a == b {
					w.ranks[a].frozen = w.now.Add(90 * time.Millisecond)
					w.run(90 * time.Millisecond)
				} else {
					w.cut[[2]int{a, b}] = true
					w.run(testRules.bound + testRules.bound/2)
					w.cut[[2]int{a, b}] = false
				}
				w.run(time.Second)
				if w.survivors() != all {
					return fmt.Sprintf("%d ranks, %d does not reach %d: %v go on", n, a, b, w.survivors())
				}
			}
		}
	}
	return ""
}

// TestPair: two ranks that do not hear each other for good cannot stay together; the
// higher one goes, and no other.
func TestPair(t *testing.T) {
	for a := range 4 {
		for b := range a {
			w := newWorld(uint64(a*10+b), 4)
			w.run(50 * time.Millisecond)
			w.setCut(rankset.Of(a), rankset.Of(b), true)
			w.run(2 * time.Second)
			require.Equal(t, rankset.Upto(4).Without(a), w.survivors(), "%d from %d", a, b)
		}
	}
}

// TestBlamed: what a failure detector says is carried out though the rank is heard.
func TestBlamed(t *testing.T) {
	for by := range 3 {
		for target := range 3 {
			if by == target {
				continue
			}
			w := newWorld(1, 3)
			w.run(30 * time.Millisecond)
			w.ranks[by].seen, w.ranks[by].blames = rankset.Upto(3), rankset.Of(target)
			w.run(60 * time.Millisecond)
			require.Equal(t, rankset.Upto(3).Without(target), w.survivors(), "%d blames %d", by, target)
		}
	}
}

func FuzzAgreementMessage(f *testing.F) {
	f.Add((&agreementMessage{kind: kindAccept, set: rankset.Upto(3)}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseAgreementMessage(b)
		if err == nil {
			require.Equal(t, b, m.append(nil))
		}
	})
}

// TestExcuse: a rank that was heard right after this rank had stood still is not excused
// for longer than that: no rank was heard in the future.
func TestExcuse(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newAgreement(0, rankset.Upto(3), testRules, now)
	now = now.Add(time.Hour) // this rank stood still, and rank 1's last message waited
	c.observe(now, 1)
	c.excuse(now, time.Hour)
	c.tick(now)
	require.Zero(t, c.unresponsive)
	now = now.Add(testRules.bound)
	c.tick(now)
	require.Equal(t, rankset.Of(1, 2), c.unresponsive)
}

// TestValueIsAPartOfTheSet: whatever a voter says that it has accepted, no rank comes in
// by it, and no rank that there cannot be.
func TestValueIsAPartOfTheSet(t *testing.T) {
	now := time.Now()
	c := newAgreement(0, rankset.Of(0, 1, 3), testRules, now)
	c.ask(now, rankset.Of(0, 1, 3), rankset.Of(3))
	ballot := c.turn.ballot
	c.receive(now, &agreementMessage{kind: kindPromise, from: 1, set: rankset.Of(0, 1, 3), ballot: ballot, accepted: 1, value: rankset.Upto(3).With(63)})
	c.receive(now, &agreementMessage{kind: kindPromise, from: 3, set: rankset.Of(0, 1, 3), ballot: ballot})
	c.receive(now, &agreementMessage{kind: kindAccepted, from: 1, set: rankset.Of(0, 1, 3), ballot: ballot})
	c.receive(now, &agreementMessage{kind: kindAccepted, from: 3, set: rankset.Of(0, 1, 3), ballot: ballot})
	require.Equal(t, rankset.Of(0, 1), c.word())
	c.receive(now, &agreementMessage{kind: kindAccept, from: 1, set: rankset.Of(0, 1), ballot: 1 << 10, value: rankset.Upto(3).With(63)})
	require.Equal(t, rankset.Of(0, 1), c.value)
}
