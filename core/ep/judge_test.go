package ep

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/inproc"
)

// TestJudgeBlamesTheCause: a rank that waits itself and moves is a messenger;
// the one at the end of its waits is blamed, and not before the messenger has
// waited for as long as the judge gives a wait.
func TestJudgeBlamesTheCause(t *testing.T) {
	doms := inproc.New(3, layout.ControlBytes)
	judge, messenger := NewJudge(doms[0], 1), NewJudge(doms[1], 1)
	now := time.Now()
	try := func(since time.Time) (causes uint64, until time.Time) {
		for decided := false; !decided; now = now.Add(time.Second) {
			messenger.Show(1<<2, since)
			causes, until, decided = judge.Try(now, 1<<1, time.Minute)
		}
		return causes, until
	}
	since := now
	causes, until := try(since)
	require.Zero(t, causes)
	require.WithinDuration(t, since.Add(time.Minute), until, time.Millisecond)
	now = now.Add(time.Minute)
	causes, _ = try(since)
	require.EqualValues(t, 1<<2, causes)

	// It does not wait any more: it is late itself.
	messenger.Show(0, time.Time{})
	judge.Reset()
	for decided := false; !decided; now = now.Add(time.Second) {
		causes, _, decided = judge.Try(now, 1<<1, time.Minute)
	}
	require.EqualValues(t, 1<<1, causes)
}

// TestJudgeKnowsWhoIsSilent: who has ended, and who has said so in this epoch.
func TestJudgeKnowsWhoIsSilent(t *testing.T) {
	doms := inproc.NewPartial(4, 0b0111, layout.ControlBytes)
	judge := NewJudge(doms[0], 1)
	require.EqualValues(t, 0b1000, judge.Silent(0b1110), "nobody was there")
	NewJudge(doms[1], 1).SayQuiet()
	inproc.Doom(doms[0], 2)
	require.EqualValues(t, 0b0100, judge.Dying(0b0110))
	require.EqualValues(t, 0b0010, judge.Silent(0b0110), "who is about to end may write still")
	inproc.Kill(doms[0], 2)
	require.EqualValues(t, 0b0110, judge.Silent(0b0110))
	require.Zero(t, NewJudge(doms[0], 2).Silent(0b0010), "it said so of another epoch")
}
