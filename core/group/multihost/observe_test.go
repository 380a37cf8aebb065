package multihost

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/transport"
)

// remoteOf is what a rank sees of another one; a zero for one that is local.
func (g *troupe) remoteOf(rank, other int) RemoteRank {
	for _, f := range g.domains[rank].RemoteRanks() {
		if f.Rank == other {
			return f
		}
	}
	return RemoteRank{}
}

// counts are the messages and bytes of each pair, by sender and receiver.
type counts map[[2]int][2]uint64

func (g *troupe) chat(rng *rand.Rand, ranks rankset.Set, c counts) {
	for a := range ranks.All() {
		for b := range ranks.And(g.domains[a].Remote().Ranks()).All() {
			text := string(make([]byte, 1+rng.IntN(2000)))
			send(g.t, g.domains[a], b, text)
			require.Equal(g.t, text, receive(g.t, g.domains[b], a))
			old := c[[2]int{a, b}]
			c[[2]int{a, b}] = [2]uint64{old[0] + 1, old[1] + uint64(len(text))}
		}
	}
}

func (g *troupe) sameCounts(ranks rankset.Set, c counts) {
	g.t.Helper()
	for a := range ranks.All() {
		for b := range ranks.And(g.domains[a].Remote().Ranks()).All() {
			f, out, in := g.remoteOf(a, b), c[[2]int{a, b}], c[[2]int{b, a}]
			require.Equal(g.t, out, [2]uint64{f.SentMessages, f.SentBytes}, "%d to %d", a, b)
			require.Equal(g.t, in, [2]uint64{f.ReceivedMessages, f.ReceivedBytes}, "%d from %d", a, b)
			require.Zero(g.t, f.Dropped+f.Ignored)
		}
	}
}

// TestRemoteRanks: counts are those of the rank that sent, and go on over an update,
// though the links are new; local ranks are not there.
func TestRemoteRanks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng, c := rand.New(rand.NewPCG(seed, 0)), counts{}
	g := newTroupe(t, []string{"a", "b", "a"}, nil)
	require.Len(t, g.domains[0].RemoteRanks(), 1)
	require.Len(t, g.domains[1].RemoteRanks(), 2)
	for range 10 {
		g.chat(rng, rankset.Upto(3), c)
	}
	g.sameCounts(rankset.Upto(3), c)
	for epoch := range membership.Epoch(2) {
		changes, joined, err := g.reconnect(rankset.Upto(3), nil)
		require.NoError(t, err)
		g.begin(2+epoch, changes, joined)
		g.sameCounts(rankset.Upto(3), c)
		g.chat(rng, rankset.Upto(3), c)
		g.sameCounts(rankset.Upto(3), c)
	}
	f := g.remoteOf(1, 2)
	require.Equal(t, []any{"tcp", LinkUp}, []any{f.Carrier, f.State})
	eventually(t, "all credits are back", func() bool { f = g.remoteOf(1, 2); return f.Credits == f.MaxCredits })
	eventually(t, "beats", func() bool { return g.remoteOf(1, 2).Beats > f.Beats+2 && g.remoteOf(1, 2).Heard > f.Heard })
	totals := g.domains[1].Totals()
	g.everySet(rankset.Upto(3), rankset.Upto(3))
	// What was agreed on may be of epochs that ended: ranks leave them one after another.
	require.Equal(t, Totals{TimesUnresponsive: totals.TimesUnresponsive, Ballots: totals.Ballots, Agreed: totals.Agreed}, totals, "nobody was lost")
}

// TestRemoteRankIsLost: how a remote rank that goes away is shown.
func TestRemoteRankIsLost(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	require.NoError(t, g.domains[2].Close())
	eventually(t, "ended or out", func() bool { return g.remoteOf(0, 2).State >= LinkEnded })
	g.everySet(rankset.Of(0, 1), rankset.Of(0, 1))
	eventually(t, "out", func() bool { return g.remoteOf(0, 2).State == LinkOut && g.remoteOf(1, 2).State == LinkOut })
	require.Equal(t, LinkUp, g.remoteOf(0, 1).State)
	require.Empty(t, g.domains[0].WhyNot(1))

	g = newTroupe(t, []string{"a", "b", "c"}, nil)
	g.domains[1].links.LinkOf(2).Break(transport.ErrNotSupported)
	require.Equal(t, LinkBroken, g.remoteOf(1, 2).State)
	require.Contains(t, g.domains[1].WhyNot(2), transport.ErrNotSupported.Error())
	eventually(t, "agreed", func() bool { return !membership.Fence(g.domains[1].Members(), 1, 1, 2) && gone(g.domains[1], 2) })
	g.everySet(rankset.Of(0, 1), rankset.Of(0, 1))
	eventually(t, "out", func() bool { return g.remoteOf(1, 2).State == LinkOut })
	require.NotZero(t, g.domains[0].Totals().Agreed+g.domains[1].Totals().Agreed)
	require.NotZero(t, g.domains[0].Totals().Ballots+g.domains[1].Totals().Ballots)
}

// TestReport: every heartbeat all remote ranks, until there are none.
func TestReport(t *testing.T) {
	var mu sync.Mutex
	seen, own := make([][]RemoteRank, 3), make([]domain.Segment, 3)
	g := newTroupe(t, []string{"a", "a", "b"}, func(rank int, c *Config) {
		c.Report = func(s domain.Segment, remote []RemoteRank) {
			mu.Lock()
			defer mu.Unlock()
			seen[rank], own[rank] = append([]RemoteRank(nil), remote...), s
		}
	})
	reported := func(rank, num int, sent uint64) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			if len(seen[rank]) != num || own[rank] != g.domains[rank].Control(rank) {
				return false
			}
			return num == 0 || seen[rank][0].SentMessages == sent
		}
	}
	g.exchange("x")
	eventually(t, "reported", reported(0, 1, 1))
	eventually(t, "reported", reported(2, 2, 1))
	changes, joined, err := g.reconnect(rankset.Of(0, 1), nil)
	require.NoError(t, err)
	g.begin(2, changes, joined)
	require.True(t, reported(0, 0, 0)(), "at once")
	require.Empty(t, g.domains[0].RemoteRanks())
}

// TestLookingAllocatesNothing: it happens every heartbeat.
func TestLookingAllocatesNothing(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "c"}, nil)
	v := g.domains[0].now.Load().view
	out := make([]RemoteRank, 0, rankset.MaxRanks)
	v.totals.mu.Lock()
	defer v.totals.mu.Unlock()
	require.Less(t, testing.AllocsPerRun(1000, func() { out = v.remoteRanks(out[:0]) }), 1.0)
	require.Len(t, out, 2)
}

// TestAhead: of two windows the most, and no older ones.
func TestAhead(t *testing.T) {
	var s controlStats
	at := func(seconds int64, ahead int64) int64 {
		s.lastHeard.Store(100*int64(time.Second) + seconds*int64(time.Second))
		s.beat(ahead)
		return s.ahead.Load()
	}
	require.EqualValues(t, -1001, at(0, -1001))
	require.EqualValues(t, -501, at(1, -501), "it took less time")
	require.EqualValues(t, -501, at(4, -2001))
	require.EqualValues(t, -501, at(6, -901), "the window before counts")
	require.EqualValues(t, -501, at(9, -701))
	require.EqualValues(t, -701, at(12, -3001), "the one before that does not")
	require.EqualValues(t, -5001, at(60, -5001), "nor does one that is long over")
	require.EqualValues(t, 1, at(61, 0), "0 is not known")
	require.EqualValues(t, 8, s.beats.Load())
}

// TestEnds: by kind, of remote ranks alone.
func TestEnds(t *testing.T) {
	g := newTroupe(t, []string{"a", "b", "a"}, nil)
	v := g.domains[0].now.Load().view
	for rank, how := range map[int][]link.Ending{1: {link.EndExited, link.EndBroken, link.EndShutdown}, 2: {link.EndExited}} {
		for _, h := range how {
			v.countEnd(rank, h)
		}
	}
	totals := g.domains[0].Totals()
	require.Equal(t, []uint64{1, 1}, []uint64{totals.Ended, totals.Broken})
}
