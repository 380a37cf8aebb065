package multihost

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestReasonThatCannotBe: a reason is input. What is about another epoch, about its sender or no
// rank, too short or too long is dropped, and what a log cannot show is replaced.
func TestReasonThatCannotBe(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	v := g.domains[1].now.Load().view
	require.True(t, v.isOf(epochOf(g.domains[1].Members().Load())))
	epoch := v.epoch
	say := func(rank int, epoch membership.Epoch, text string) {
		v.takeWhy(0, append(binary.LittleEndian.AppendUint16([]byte{byte(rank)}, uint16(epoch)), text...))
	}
	for rank, text := range map[int]string{0: "itself", rankset.MaxRanks: "none", 255: "none", 1: strings.Repeat("x", maxReasonBytes+1)} {
		say(rank, epoch, text)
	}
	say(1, epoch+1, "of the next epoch")
	say(1, epoch, "")
	v.takeWhy(0, []byte{1, 0})
	v.takeWhy(0, nil)
	require.Equal(t, epoch, v.epoch)
	for rank := range g.domains {
		require.Empty(t, g.domains[1].Explained(rank))
	}
	say(1, epoch, "a\nb\x00\xff\u202e")
	require.Equal(t, "rank 0 says: a?b???", g.domains[1].Explained(1))
	say(1, epoch, strings.Repeat("x", maxReasonBytes))
	require.Len(t, g.domains[1].Explained(1), len("rank 0 says: ")+maxReasonBytes)
	require.Empty(t, g.domains[1].Explained(-1))
	require.Empty(t, g.domains[1].Explained(rankset.MaxRanks))
}

// TestStaleReason: a reason that was last said long before its rank went out is none.
func TestStaleReason(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	v := g.domains[1].now.Load().view
	is, now := &v.reasons[0], time.Now()
	set := func(at, out time.Time) {
		v.mu.Lock()
		defer v.mu.Unlock()
		is.text, is.at, is.out = "it was late", at, out
	}
	set(now, time.Time{})
	require.Equal(t, "it was late", g.domains[1].Explained(0))
	set(now.Add(-staleAfter-time.Second), time.Time{})
	require.Empty(t, g.domains[1].Explained(0))
	set(now.Add(-time.Hour), now.Add(-time.Hour+staleAfter))
	require.Equal(t, "it was late", g.domains[1].Explained(0), "it went out then")
	set(now.Add(-time.Hour), now.Add(-time.Hour+staleAfter+time.Second))
	require.Empty(t, g.domains[1].Explained(0))
}

// TestReasonIsSaidAgain: a reason goes out once, when it changes, and again while its rank still asks.
func TestReasonIsSaidAgain(t *testing.T) {
	v, now := &view{}, time.Now()
	due := func(why string, at time.Duration) bool {
		_, _, due := v.mayExplain(1, why, now.Add(at))
		return due
	}
	require.True(t, due("late", 0))
	require.False(t, due("late", sayEvery-1))
	require.True(t, due("dead", sayEvery-1))
	require.False(t, due("dead", sayEvery))
	require.True(t, due("dead", 2*sayEvery))
}

// TestHowLost: of a rank whose process has ended it is known who says so, and at which address it was.
func TestHowLost(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b"}, nil)
	how := func() string { return g.domains[2].Process(0).(*peer).HowLost() }
	require.Empty(t, how())
	g.domains[2].now.Load().view.takeEnded(1, binary.LittleEndian.AppendUint64(nil, 1))
	eventually(t, "rank 0 is dead", func() bool { return how() != "" })
	require.Equal(t, "rank 1, of the same host, says that its process has ended (host 127.0.0.1)", how())
}
