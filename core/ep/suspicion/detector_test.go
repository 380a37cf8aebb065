package suspicion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestDetectorBlamesTheStraggler: a rank that waits itself and moves is blocked.
// The rank at the end of its waits is blamed, and not before the blocked rank has
// waited for as long as the detector gives a wait.
func TestDetectorBlamesTheStraggler(t *testing.T) {
	doms := inproc.New(3, layout.ControlBytes)
	detector, blocked := NewDetector(doms[0], 1), NewDetector(doms[1], 1)
	now := time.Now()
	try := func(since time.Time) (causes rankset.Set, until time.Time) {
		for decided := false; !decided; now = now.Add(time.Second) {
			blocked.Show(rankset.Of(2), since)
			causes, until, decided = detector.Try(now, rankset.Of(1), time.Minute)
		}
		return causes, until
	}
	since := now
	causes, until := try(since)
	require.Zero(t, causes)
	require.WithinDuration(t, since.Add(time.Minute), until, time.Millisecond)
	now = now.Add(time.Minute)
	causes, _ = try(since)
	require.EqualValues(t, rankset.Of(2), causes)

	// It does not wait any more: it is late itself.
	blocked.Show(rankset.Set{}, time.Time{})
	detector.Reset()
	for decided := false; !decided; now = now.Add(time.Second) {
		causes, _, decided = detector.Try(now, rankset.Of(1), time.Minute)
	}
	require.EqualValues(t, rankset.Of(1), causes)
}

// TestDetectorKnowsWhoIsQuiesced: ranks that have ended, and ranks that have said so in
// this epoch.
func TestDetectorKnowsWhoIsQuiesced(t *testing.T) {
	doms := inproc.NewPartial(4, rankset.Upto(3), layout.ControlBytes)
	detector := NewDetector(doms[0], 1)
	require.EqualValues(t, rankset.Of(3), detector.Quiesced(rankset.Of(1, 2, 3)), "nobody was there")
	NewDetector(doms[1], 1).PublishQuiesced()
	inproc.MarkDying(doms[0], 2)
	require.EqualValues(t, rankset.Of(2), detector.Dying(rankset.Of(1, 2)))
	require.EqualValues(t, rankset.Of(1), detector.Quiesced(rankset.Of(1, 2)), "who is about to end may write still")
	inproc.Kill(doms[0], 2)
	require.EqualValues(t, rankset.Of(1, 2), detector.Quiesced(rankset.Of(1, 2)))
	require.Zero(t, NewDetector(doms[0], 2).Quiesced(rankset.Of(1)), "it said so of another epoch")
}
