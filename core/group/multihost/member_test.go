package multihost

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// everySet waits until all of some ranks see the same member set.
func (g *troupe) everySet(ranks, want rankset.Set) {
	g.t.Helper()
	for r := range ranks.All() {
		word := g.domains[r].Members()
		eventually(g.t, "the set", func() bool { return ranksOf(word.Load()) == want })
	}
}

// TestLeave: a rank takes itself out at once, and every rank hears of it.
func TestLeave(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b", "c"}, nil)
	require.True(t, membership.Leave(g.domains[2].Members(), 1, 2))
	require.Equal(t, rankset.Of(0, 1, 3), ranksOf(g.domains[2].Members().Load()), "at once")
	g.everySet(rankset.Upto(4), rankset.Of(0, 1, 3))
	require.True(t, membership.Leave(g.domains[0].Members(), 1, 0))
	g.everySet(rankset.Upto(4), rankset.Of(1, 3))
	require.False(t, membership.Leave(g.domains[0].Members(), 1, 0))
}

// TestLeaveBehindWords: a rank that learns that another one has left sees the words that
// it had stored before, though no beat was due.
func TestLeaveBehindWords(t *testing.T) {
	const off = 16
	g := newTroupe(t, []string{"a", "b"}, func(_ int, c *Config) {
		c.Words, c.Heartbeat, c.Bound = []int64{off}, 10*time.Minute, time.Hour
	})
	g.domains[1].Control(1).Word(off).Store(7)
	require.True(t, membership.Leave(g.domains[1].Members(), 1, 1))
	g.everySet(rankset.Of(0), rankset.Of(0))
	require.EqualValues(t, 7, g.domains[0].Control(1).Word(off).Load())
}

// TestExpel: another rank is taken out when that has been agreed on; until then the word
// stays, and the rank that asks may ask again.
func TestExpel(t *testing.T) {
	for by := range 4 {
		for target := range 4 {
			if by == target {
				continue
			}
			g := newTroupe(t, []string{"a", "b", "a", "c"}, nil)
			word := g.domains[by].Members()
			seen := membership.Members(word.Load())
			if !membership.Expel(word, seen, 1, by, rankset.Of(target)) {
				require.Contains(t, []rankset.Set{rankset.Upto(4), rankset.Upto(4).Without(target)}, ranksOf(word.Load()))
			}
			g.everySet(rankset.Upto(4), rankset.Upto(4).Without(target))
			for r := range rankset.Upto(4).Without(target).All() {
				remote := g.domains[r].Remote().Ranks().And(rankset.Of(target))
				eventually(t, "the link is revoked", func() bool { return g.domains[r].links.Failed() == remote })
			}
			require.False(t, membership.Fence(g.domains[target].Members(), 1, target, by), "who is out takes nobody out")
			require.False(t, word.CompareAndSwap(word.Load(), word.Load()|1<<target), "nobody comes back")
			g.close()
		}
	}
}

// TestStale: a change that is asked for in a word that is over already is not
// the caller's, though its result is there.
func TestStale(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	word := g.domains[0].Members()
	old := word.Load()
	membership.Fence(word, 1, 0, 2)
	g.everySet(rankset.Of(0, 1), rankset.Of(0, 1))
	require.False(t, word.CompareAndSwap(old, old&^0b100))
}

// TestAgreementPanics: no rank waits for ever for an agreement that has failed.
func TestAgreementPanics(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	v := g.domains[0].now.Load().view
	require.Panics(t, func() { v.act(func(*agreement, time.Time) { panic("a mistake") }) })
	require.True(t, v.mu.TryLock(), "the lock is held for ever")
	v.mu.Unlock()
}

// TestClosed: a domain that is closed has not died, but no rank waits for it.
func TestClosed(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	g.exchange("before")
	send(t, g.domains[2], 0, "the last words")
	eventually(t, "arrived", func() bool { return g.domains[0].Remote().Next(2) != nil })
	require.NoError(t, g.domains[2].Close())
	for r := range 2 {
		p := g.domains[r].Process(2)
		eventually(t, "gone", p.Dying)
		require.NoError(t, p.Lost())
	}
	require.Equal(t, "the last words", receive(t, g.domains[0], 2))
	g.everySet(rankset.Of(0, 1), rankset.Of(0, 1)) // its connections have ended: known to all
	g.exchangeAmong(rankset.Of(0, 1))
}

// exchangeAmong lets some ranks hear from one another.
func (g *troupe) exchangeAmong(ranks rankset.Set) {
	for a := range ranks.All() {
		for b := range ranks.And(g.domains[a].Remote().Ranks()).All() {
			send(g.t, g.domains[a], b, "still here")
			require.Equal(g.t, "still here", receive(g.t, g.domains[b], a))
		}
	}
}

// TestSleep: a message wakes a rank that sleeps.
func TestSleep(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	for range 50 {
		d := g.domains[1]
		ticket := d.PrepareSleep()
		sent := make(chan bool)
		go func() { defer close(sent); send(t, g.domains[0], 1, "wake up") }()
		for d.Remote().Next(0) == nil {
			begin := time.Now()
			d.Sleep(ticket, testTimeout)
			require.Less(t, time.Since(begin), testTimeout)
			ticket = d.PrepareSleep()
		}
		d.CancelSleep()
		d.Remote().Release(0)
		<-sent
	}
}

// TestLinkFails: a link breaks while both processes live: one of the two goes, and no
// other.
func TestLinkFails(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	l := g.domains[1].links.LinkOf(2)
	l.Break(transport.ErrNotSupported)
	p := g.domains[1].Process(2)
	eventually(t, "noticed", p.Dying)
	eventually(t, "agreed", func() bool { return !membership.Fence(g.domains[1].Members(), 1, 1, 2) && gone(g.domains[1], 2) })
	g.everySet(rankset.Of(0, 1), rankset.Of(0, 1))
}

func gone(d *Domain, rank int) bool { return d.Members().Load()>>rank&1 == 0 }

// TestPageIsAhead: what a local rank had put into the host's page before it ended
// counts, even if its agreement messages never came; changes go on from there.
func TestPageIsAhead(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b"}, nil)
	page := g.domains[0].local.Members()
	require.True(t, page.CompareAndSwap(1<<membership.EpochShift|0b111, 1<<membership.EpochShift|0b011))
	eventually(t, "rank 0 out", func() bool {
		membership.Fence(g.domains[1].Members(), 1, 1, 0)
		return g.domains[1].Members().Load() == 1<<membership.EpochShift|0b010
	})
	eventually(t, "rank 2 out", func() bool { return g.domains[2].Members().Load()>>2&1 == 0 })
}

// TestWordAge: words are as old as what keeps them fresh has not run.
func TestWordAge(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	remote, v := g.domains[0].Remote(), g.domains[0].now.Load().view
	v.mu.Lock()
	eventually(t, "old words", func() bool { return remote.WordAge() > 20*DefaultHeartbeat })
	v.mu.Unlock()
	eventually(t, "fresh words", func() bool { return remote.WordAge() < 20*DefaultHeartbeat })
}
