package suspicion_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestDetectorOfWildMembers: bits of ranks that do not exist count for no rank.
func TestDetectorOfWildMembers(t *testing.T) {
	doms := inproc.New(2, layout.ControlBytes)
	d := suspicion.NewDetector(doms[0], 1)
	doms[0].Members().(*atomic.Uint64).Store(1<<membership.EpochShift | (1<<membership.EpochShift - 1))
	require.Zero(t, d.Dying(rankset.Upto(rankset.MaxRanks)))
	require.Zero(t, d.Quiesced(rankset.Upto(rankset.MaxRanks)))
	for decided := false; !decided; {
		_, _, decided = d.Try(time.Now(), rankset.Upto(rankset.MaxRanks), time.Millisecond)
	}
}
