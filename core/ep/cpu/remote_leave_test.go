package cpu_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/inproc"
)

// TestRemoteCloseAfterCombine: a rank that needs no other rank for its tokens ends its
// combine, and its part in the group, while its outputs are on their way. The
// others get them all the same.
func TestRemoteCloseAfterCombine(t *testing.T) {
	useHosts(t, func(n int) inproc.Hosts {
		return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r }), MaxMessageBytes: 1 << 10, MaxDelay: 8, DelaySeed: 3}
	})
	for range 10 {
		w := newWorld(t, 2, ep.Config{NumBytes: 16 << 20})
		ins := []input{remoteInput(0), remoteInput(1)}
		for i := range ins {
			for at := range ins[i].topk {
				ins[i].topk[at] = int64(at % small.topk) // on rank 0
			}
		}
		w.each(func(rank int) error {
			mask := ones(2)
			d := new(dispatched)
			a := w.args(rank, small, &ins[rank], d)
			a.ActiveRanks = mask
			if _, err := w.bufs[rank].Dispatch(a, &d.res, ep.PhaseDone, -1); err != nil {
				return err
			}
			d.compute(rank, small)
			c := combineArgs(d, &ins[rank], make([]byte, ins[rank].tokens*small.hidden*2))
			c.ActiveRanks = mask
			if _, err := w.bufs[rank].Combine(d.res.Op, c, ep.PhaseDone, -1); err != nil {
				return err
			}
			want := wantCombine(&ins[rank], small.hidden, small.topk, alive)
			require.True(t, bytes.Equal(want, c.Out), "rank %d with mask %v", rank, mask)
			return w.bufs[rank].Close()
		})
	}
}

// TestRemoteCloseBesideAnUnresponsiveRank: no rank waits long for a rank that takes
// nothing, or waits at all for a rank that has ended.
func TestRemoteCloseBesideAnUnresponsiveRank(t *testing.T) {
	for _, dies := range []bool{false, true} {
		a := newAlone(t, false, false)
		a.send(controlWordsMessage(1<<16, 0, 0)) // so that rows are sent to it
		if dies {
			inproc.Kill(a.doms[0], 1)
		}
		closed := make(chan error, 1)
		go func() { closed <- a.bufs[0].Close() }()
		require.NoError(t, within(t, closed))
	}
}
