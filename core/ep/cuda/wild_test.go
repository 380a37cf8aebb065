package cuda_test

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// overwrite stores a word as a wild pointer does.
func overwrite(at, v uint64) { cudatest.Slice[uint64](at, 1)[0] = v }

// counterAt is where an expert's rows are counted, of an operation that has begun.
func (o *op) counterAt(l int) uint64 {
	return o.res.RecvX - uint64(o.res.Slab.Rows().Off) + uint64(layout.Counter(l))
}

// whyLost are the reasons of a rank's events about the loss of another one, or itself.
func whyLost(r *rank, rank int) (why []string) {
	events, _ := r.Events(0)
	for _, ev := range events {
		if ev.Kind == telemetry.Lost && ev.Rank == rank {
			why = append(why, ev.Why)
		}
	}
	return why
}

func violations(t *testing.T, r *rank) uint64 {
	s, err := r.Stats()
	require.NoError(t, err)
	return s.Violations
}

// foundBy is how many ranks have counted a violation. A rank that sees the culprit out
// already need not find it; no rank counts it twice.
func foundBy(t *testing.T, group []*rank) (n uint64) {
	for _, r := range group {
		v := violations(t, r)
		require.LessOrEqual(t, v, uint64(1))
		n += v
	}
	return n
}

// TestWildCounter: after its counter was overwritten, a rank is taken out, with the reason,
// and each rank that has found it counts it once. The others go on, with right sums, and an
// update makes the group whole.
func TestWildCounter(t *testing.T) {
	cudatest.Emulate(t)
	for _, held := range []uint64{18, 1 << 63, math.MaxUint64 - 40} { // there is room for 18
		t.Run(fmt.Sprintf("%#x", held), func(t *testing.T) {
			group := newGroup(t, 3)
			all := ops(t, group, 180)
			for _, o := range all[:2] {
				o.ids.values[0] = 4 // the first expert of rank 2
			}
			all[2].dispatch()
			require.Eventually(t, func() bool { return group[2].DeviceWait(0) != 0 && group[2].DeviceWait(1) != 0 }, connectIn, time.Millisecond)
			overwrite(all[2].counterAt(0), held)
			for _, o := range all[:2] {
				o.dispatch()
			}
			require.Eventually(t, func() bool { return group[0].Members() == rankset.Of(0, 1) && group[1].Members() == rankset.Of(0, 1) }, connectIn, time.Millisecond)
			for _, o := range all[:2] {
				o.combine()
			}
			for _, o := range all[:2] {
				o.r.sync()
				o.check(2)
				require.NoError(t, o.r.Err())
			}
			require.Eventually(t, func() bool { return foundBy(t, group) >= 1 }, connectIn, time.Millisecond)
			require.Eventually(t, func() bool { return group[2].Err() != nil }, connectIn, time.Millisecond)
			require.ErrorIs(t, group[2].Err(), ep.ErrFenced)
			why := append(append(whyLost(group[0], 2), whyLost(group[1], 2)...), whyLost(group[2], 2)...)
			require.Contains(t, strings.Join(why, "\n"), "its memory was overwritten: ")
			roundOf(all[:2], 2)
			update(t, group)
			for _, r := range group {
				copy(r.active.values, []int32{1, 1, 1})
			}
			roundOf(all)
		})
	}
}

// TestWildOwnWord: a rank that finds its own memory overwritten leaves by itself, and says
// which word it was.
func TestWildOwnWord(t *testing.T) {
	cudatest.Emulate(t)
	group := newGroup(t, 2)
	all := ops(t, group, 181)
	for _, o := range all {
		require.NoError(t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
	}
	for _, o := range all {
		o.r.sync()
	}
	overwrite(all[1].counterAt(1), 13) // there is room for 12
	for _, o := range all {
		require.NoError(t, o.r.Receive(o.res.Handle))
	}
	for _, o := range all {
		o.r.sync()
	}
	require.Eventually(t, func() bool { return group[1].Err() != nil }, connectIn, time.Millisecond)
	require.ErrorIs(t, group[1].Err(), ep.ErrFenced)
	require.ErrorContains(t, group[1].Err(), "its memory was overwritten: counter[1] holds 0xd, allowed: at most 12")
	require.EqualValues(t, 1, violations(t, group[1]))
	require.Len(t, whyLost(group[1], 1), 1)
	require.Eventually(t, func() bool { return group[0].Members() == rankset.Of(0) }, connectIn, time.Millisecond)
	require.NoError(t, group[0].Err())
	require.Zero(t, violations(t, group[0]))
}

// TestWildMessage: a rank of another host that sends an impossible message is taken out.
func TestWildMessage(t *testing.T) {
	cudatest.Emulate(t)
	h := newHosts(t, "ab")
	all := ops(t, h.ranks, 182)
	for i := range all[1].ids.values {
		all[1].ids.values[i] = int64(i % 2) // all at rank 0
	}
	overwriteMessage(h, all)
	all[0].dispatch()
	require.Eventually(t, func() bool { return violations(t, h.ranks[0]) == 1 }, connectIn, time.Millisecond)
	require.Eventually(t, func() bool { return h.ranks[0].Members() == rankset.Of(0) || h.ranks[0].Err() != nil }, connectIn, time.Millisecond)
	if h.ranks[0].Err() == nil {
		require.Contains(t, strings.Join(whyLost(h.ranks[0], 1), "\n"), "a message of it cannot be")
		all[0].combine()
		h.ranks[0].sync()
		all[0].check(1)
	}
}

// TestWildMembers: bits of members that no rank can have set are cleared again, are counted, and
// cost no rank anything: ranks that the group does not have, and one that is out.
func TestWildMembers(t *testing.T) {
	cudatest.Emulate(t)
	group := newGroup(t, 3)
	all := ops(t, group, 183)
	page := group[0].dom.Members().(*atomic.Uint64)
	cleared := func(want uint64) {
		require.Eventually(t, func() bool { return page.Load()&(1<<membership.EpochShift-1) == want }, connectIn, time.Millisecond)
	}
	counted := func() (n uint64) {
		for _, r := range group {
			n += violations(t, r)
		}
		return n
	}
	roundOf(all)
	for _, bits := range []uint64{1 << 3, 1 << 47, 0xffffffffff << 3} {
		before := counted()
		page.Or(bits)
		cleared(0b111)
		require.Eventually(t, func() bool { return counted() > before }, connectIn, time.Millisecond)
		roundOf(all)
	}
	page.And(^uint64(0b100)) // as if a rank had taken it out
	require.Eventually(t, func() bool { return group[2].Err() != nil }, connectIn, time.Millisecond)
	for _, r := range group[:2] {
		require.Eventually(t, func() bool { return r.Members() == rankset.Of(0, 1) }, connectIn, time.Millisecond)
	}
	page.Or(0b100)
	cleared(0b011)
	require.ErrorIs(t, group[2].Err(), ep.ErrFenced)
	for _, r := range group[:2] {
		require.NoError(t, r.Err())
		require.Equal(t, rankset.Of(0, 1), r.Members())
	}
}

// overwriteMessage spoils the first message from rank 1 to rank 0.
func overwriteMessage(h *hosts, all []*op) {
	require.NoError(h.t, h.ranks[1].Dispatch(&all[1].args, &all[1].res, ep.PhaseSent))
	mail := h.ranks[0].RemoteMail(1)
	const came, at, rows = 3, 4, 6
	require.Eventually(h.t, func() bool { return atomic.LoadUint64(&mail[came]) != 0 }, connectIn, time.Millisecond)
	overwrite(h.ranks[0].RemoteRing(1)+mail[at]+8*rows, math.MaxUint64)
}

// TestReasonOfAgreedLoss: where hosts agree that a rank is out, the rank that has found the wrong
// message still says so.
func TestReasonOfAgreedLoss(t *testing.T) {
	cudatest.Emulate(t)
	h := newHosts(t, "abc")
	all := ops(t, h.ranks, 184)
	overwriteMessage(h, all)
	all[0].dispatch()
	require.Eventually(t, func() bool { return h.ranks[0].Members() == rankset.Of(0, 2) }, connectIn, time.Millisecond)
	require.Eventually(t, func() bool { return len(whyLost(h.ranks[0], 1)) == 1 }, connectIn, time.Millisecond)
	require.Contains(t, whyLost(h.ranks[0], 1)[0], "a message of it cannot be")
	require.EqualValues(t, 1, violations(t, h.ranks[0]))
}
