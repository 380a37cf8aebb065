package cpu_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// TestReasonOfAgreedLoss: where hosts agree that a rank is out, the rank that has found the wrong
// message still says so.
func TestReasonOfAgreedLoss(t *testing.T) {
	w := newHostsWorld(t, carriersOfHosts["tcp"])
	s := small
	s.ranks, s.experts = 3, 6
	ins := inputs(r2(1), s, uniform)
	w.each(func(r int) error { return w.roundTrip(r, s, ins) })
	wrong := controlWordsMessage(0, 0, 0)[:39]
	cpu.Locked(w.bufs[1], func() { postTo0(t, w.doms[1].Remote(), wrong) })
	require.Eventually(t, func() bool { return w.bufs[0].Members() == rankset.Of(0, 2) }, callTimeout, time.Millisecond)
	ins[1] = input{}
	w.some(rankset.Of(0, 2), func(r int) error {
		_, err := w.exchange(r, s, ins, callTimeout)
		return err
	})
	require.EqualValues(t, 1, w.bufs[0].Counters().NumViolations)
	events, _ := w.bufs[0].Events(0)
	var lost []string
	for _, e := range events {
		if e.Kind == telemetry.Lost {
			lost = append(lost, e.Why)
		}
	}
	require.Len(t, lost, 1)
	require.Contains(t, lost[0], "a message of rank 1 holds")
}
