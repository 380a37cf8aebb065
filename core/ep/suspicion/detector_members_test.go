package suspicion_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestDetectorOfWildMembers: bits of ranks that do not exist count for no rank.
func TestDetectorOfWildMembers(t *testing.T) {
	doms := inproc.New(2, layout.ControlBytes)
	d := suspicion.NewDetector(doms[0], 1)
	doms[0].Members().(*atomic.Uint64).Store(1<<48 | 0xffffffffffff)
	require.Zero(t, d.Dying(rankset.Upto(48)))
	require.Zero(t, d.Quiesced(rankset.Upto(48)))
	for decided := false; !decided; {
		_, _, decided = d.Try(time.Now(), rankset.Upto(48), time.Millisecond)
	}
}
