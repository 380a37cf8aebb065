package cpu_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// whyLost are the events of a rank about ranks that were lost.
func whyLost(b *cpu.Buffer) (lost []telemetry.Event) {
	events, _ := b.Events(0)
	for _, e := range events {
		if e.Kind == telemetry.Lost {
			lost = append(lost, e)
		}
	}
	return lost
}

func numLost(b *cpu.Buffer) uint64 {
	_, _, lost := b.Membership()
	return lost
}

// lostRank1 is a world of ranks on such hosts, after a round. Rank 1 is about to be lost.
func lostRank1(t *testing.T, hosts string) (*world, shape, []input) {
	w := newHostsWorld(t, carriersOfHosts[hosts])
	s := small
	s.ranks, s.experts = 3, 6
	ins := inputs(r2(1), s, uniform)
	w.each(func(r int) error { return w.roundTrip(r, s, ins) })
	return w, s, ins
}

// TestReasonOfAgreedLoss: where hosts agree that a rank is out, the rank that has found the wrong
// message still says so, the others repeat it, and the loss counts as one of the first.
func TestReasonOfAgreedLoss(t *testing.T) {
	w, s, ins := lostRank1(t, "tcp")
	wrong := controlWordsMessage(0, 0, 0)[:39]
	cpu.Locked(w.bufs[1], func() { postTo0(t, w.doms[1].Remote(), wrong) })
	require.Eventually(t, func() bool { return w.bufs[0].Members() == rankset.Of(0, 2) }, callTimeout, time.Millisecond)
	ins[1] = input{}
	w.some(rankset.Of(0, 2), func(r int) error {
		_, err := w.exchange(r, s, ins, callTimeout)
		return err
	})
	require.EqualValues(t, 1, w.bufs[0].Counters().NumViolations)
	require.Len(t, whyLost(w.bufs[0]), 1)
	require.Contains(t, whyLost(w.bufs[0])[0].Why, "a message of rank 1 holds")
	require.Len(t, whyLost(w.bufs[2]), 1)
	require.Contains(t, whyLost(w.bufs[2])[0].Why, "rank 0 says: its memory was overwritten: a message of rank 1 holds")
	require.EqualValues(t, 1, numLost(w.bufs[0]))
	require.Zero(t, numLost(w.bufs[2]))
}

// TestReasonOfAgreedTimeout: rank 0 alone has a deadline. Where hosts agree that the rank is out for
// which it waited, it says how long it did, in what, and the others repeat that: also the rank that
// is out.
func TestReasonOfAgreedTimeout(t *testing.T) {
	for _, hosts := range []string{"tcp", "both"} {
		t.Run(hosts, func(t *testing.T) {
			w, s, ins := lostRank1(t, hosts)
			ins[1] = input{}
			w.some(rankset.Of(0, 2), func(r int) error {
				timeout := 100 * time.Millisecond
				if r == 2 {
					timeout = -1
				}
				_, err := w.exchange(r, s, ins, timeout)
				return err
			})
			own, notified := whyLost(w.bufs[0]), whyLost(w.bufs[2])
			require.Len(t, own, 1)
			require.Equal(t, ep.WhyTimedOut, own[0].Why)
			require.Equal(t, "dispatch", own[0].Waiting)
			require.EqualValues(t, 1, own[0].Op)
			require.GreaterOrEqual(t, own[0].WaitedNs, int64(100*time.Millisecond))
			require.EqualValues(t, 1, numLost(w.bufs[0]))
			require.Len(t, notified, 1)
			require.Regexp(t, `^rank 0 says: it did not come before the deadline, after [\d.]+m?s in dispatch of operation 1$`, notified[0].Why)
			require.Zero(t, numLost(w.bufs[2]))
			_, err := w.exchange(1, s, inputs(r2(1), s, uniform), time.Second)
			require.ErrorIs(t, err, ep.ErrFenced)
			require.ErrorContains(t, err, "rank 0 says: it did not come before the deadline, after ")
		})
	}
}

// wakingDomain looks for lost ranks whenever its rank wakes another one.
type wakingDomain struct {
	domain.Domain
	buf atomic.Pointer[cpu.Buffer]
}

func (d *wakingDomain) Wake(rank int) {
	if b := d.buf.Load(); b != nil {
		cpu.RecordLeavers(b)
	}
	d.Domain.Wake(rank)
}

// TestLossIsCountedOnce: a call that looks at the group right after another one has taken a rank out,
// and before that one has noted it, finds the same loss.
func TestLossIsCountedOnce(t *testing.T) {
	useHosts(t, hostPlacements[0].of)
	s := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 4, topk: 3}
	w := &world{t: t, doms: newDomains(2, rankset.Of(0, 1)), bufs: make([]*cpu.Buffer, 2)}
	waking := &wakingDomain{Domain: w.doms[0]}
	for r, dom := range []domain.Domain{waking, w.doms[1]} {
		var err error
		w.bufs[r], err = cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 16 << 20})
		require.NoError(t, err)
		t.Cleanup(func() { _ = w.bufs[r].Close() })
	}
	ins := inputs(r2(1), s, uniform)
	w.each(func(r int) error { return w.roundTrip(r, s, ins) })
	ins[1] = input{}
	waking.buf.Store(w.bufs[0])
	_, err := w.exchange(0, s, ins, 100*time.Millisecond)
	require.NoError(t, err)
	require.Len(t, whyLost(w.bufs[0]), 1)
	require.EqualValues(t, 1, numLost(w.bufs[0]))
}

// TestReasonOfAnEarlierEpoch: what a rank has found of another one is forgotten with the epoch, and
// what may pass is stale after a while.
func TestReasonOfAnEarlierEpoch(t *testing.T) {
	var l ep.Losses
	now := time.Now()
	find := func(at time.Duration) string {
		loss, found := l.Find(1, nil, now.Add(at))
		if !found {
			return ""
		}
		return loss.Why
	}
	require.Empty(t, find(0))
	l.Keep(1, ep.Loss{Why: ep.WhyTimedOut, Until: ep.LateUntil(ep.WhyTimedOut, now)})
	require.Equal(t, ep.WhyTimedOut, find(ep.StaleAfter-1))
	require.Empty(t, find(ep.StaleAfter))
	l.Keep(1, ep.Loss{Why: "its memory was overwritten", Until: ep.LateUntil("its memory was overwritten", now), Asked: true})
	l.Keep(1, ep.Loss{Why: ep.WhySilent, Until: ep.LateUntil(ep.WhySilent, now)})
	require.Equal(t, "its memory was overwritten", find(time.Hour))
	loss, _ := l.Find(1, nil, now)
	require.True(t, loss.Asked)
	l.Reset()
	require.Empty(t, find(0))
}
