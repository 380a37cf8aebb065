package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// newLoneHosts makes two hosts of one rank each and an operation that rank 0's whole
// batch goes to rank 1 in. Rings hold all of it. Ranks have one slot each.
func newLoneHosts(t *testing.T) (h *hosts, all []*op) {
	cfg := configOf(t, 2)
	cfg.NumSlots = 1
	h = openHostsAs(t, "ab", true, cfg).connect(func(d domain.Domain) domain.Domain { return d })
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 101))
	for _, r := range h.ranks {
		all = append(all, newOpOf(r, shapeOf(2), 2, rng))
	}
	local := int64(all[0].args.NumExperts / 2)
	for i, id := range all[0].ids.values {
		all[0].ids.values[i] = local + id%local
	}
	return h, all
}

// TestHostsReleased: a combine of what a rank of another host has released, without
// combining it, gets an error that names that rank. It does not wait for a deadline: there
// is none here. The rank stays a member.
func TestHostsReleased(t *testing.T) {
	for name, letGo := range map[string]func(*op){
		"by Release": func(o *op) {
			o.dispatch()
			require.NoError(t, o.r.Release(o.res.Handle, o.r.stream))
		},
		"between two phases": func(o *op) {
			require.NoError(t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
			cancelled, err := o.r.CancelReceive(o.res.Handle, o.r.stream)
			require.True(t, cancelled)
			require.NoError(t, err)
		},
		"by the next dispatch": func(o *op) {
			o.dispatch()
			next := *o
			require.NoError(t, o.r.Dispatch(&next.args, &next.res, ep.PhaseSent))
		},
		"before the other begins": nil,
	} {
		t.Run(name, func(t *testing.T) {
			h, all := newLoneHosts(t)
			if letGo == nil {
				o := all[1]
				require.NoError(t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
				require.NoError(t, o.r.Release(o.res.Handle, o.r.stream))
				o.r.sync()
				all[0].dispatch()
			} else {
				all[0].dispatch()
				letGo(all[1])
			}
			all[0].combin.Device.X = all[0].res.RecvX
			_, err := all[0].r.Combine(all[0].res.Handle, &all[0].combin, ep.PhaseDone)
			require.NoError(t, err)
			all[0].r.sync()
			require.Eventually(t, func() bool { return all[0].r.Err() != nil }, connectIn, time.Millisecond)
			require.ErrorIs(t, all[0].r.Err(), ep.ErrNotCombined)
			require.ErrorContains(t, all[0].r.Err(), "rank 1")
			require.NotZero(t, h.ranks[1].Members().And(rankset.Of(1)))
		})
	}
}

// TestHostsReleasedOnceCombined: a rank that combines more often than a rank of another
// host, which has released the handle, gets the same error, though it has no deadline.
func TestHostsReleasedOnceCombined(t *testing.T) {
	for name, letGo := range map[string]func(*op){
		"by Release":           func(o *op) { require.NoError(t, o.r.Release(o.res.Handle, o.r.stream)) },
		"by the next dispatch": func(o *op) { require.NoError(t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent)) },
	} {
		t.Run(name, func(t *testing.T) {
			h, all := newLoneHosts(t)
			for _, o := range all {
				o.run()
			}
			h.ends("a combine of all")
			letGo(all[1])
			_, err := all[0].r.Combine(all[0].res.Handle, &all[0].combin, ep.PhaseDone)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return all[0].r.Err() != nil }, connectIn, time.Millisecond)
			require.ErrorIs(t, all[0].r.Err(), ep.ErrNotCombined)
			require.ErrorContains(t, all[0].r.Err(), "rank 1")
			require.NotZero(t, h.ranks[1].Members().And(rankset.Of(1)))
		})
	}
}

// TestHostsReleaseCosts: that a dispatch takes the slot of a handle that was combined is
// said by its own messages. Only a release has one of its own.
func TestHostsReleaseCosts(t *testing.T) {
	h, all := newLoneHosts(t)
	for i := range all[1].ids.values {
		all[1].ids.values[i] = 0 // an expert of rank 0
	}
	sent := func() uint64 { return all[0].r.RemoteSent() + all[1].r.RemoteSent() }
	const ops = 5
	for range ops {
		for _, o := range all {
			o.run()
		}
	}
	h.ends("operations")
	want := uint64(2 * 2 * ops) // rows and outputs of two ranks
	require.Eventually(t, func() bool { return sent() == want }, connectIn, time.Millisecond)
	require.NoError(t, all[0].r.Release(all[0].res.Handle, all[0].r.stream))
	h.ends("a release")
	require.Eventually(t, func() bool { return sent() == want+1 }, connectIn, time.Millisecond)
	for _, o := range all {
		o.check()
	}
}

// TestHostsTakenSlot: a dispatch of more experts takes the slot of one that never ran its
// second phase. The rows that this has kept come first, whole.
func TestHostsTakenSlot(t *testing.T) {
	for turn := range 3 {
		t.Run(fmt.Sprint(turn), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(110+turn)))
			few, many := largeShape(2), largeShape(2)
			many.NumExperts, many.MaxTokens = 600, 16
			cfg := configFor(t, few)
			cfg.NumBytes = max(cfg.NumBytes, configFor(t, many).NumBytes)
			cfg.NumSlots, cfg.MaxExperts = 1, int(many.NumExperts)
			h := openHostsAs(t, "ab", true, cfg).connect(func(d domain.Domain) domain.Domain { return d })
			var first, second []*op
			for _, r := range h.ranks {
				first = append(first, newOpOf(r, few, int(few.MaxTokens), rng))
				second = append(second, newOpOf(r, many, int(many.MaxTokens), rng))
			}
			for _, o := range first {
				require.NoError(t, o.r.Dispatch(&o.args, &o.res, ep.PhaseSent))
			}
			h.ends("first phases")
			require.NoError(t, first[1].r.Receive(first[1].res.Handle))
			second[0].dispatch()
			require.Eventually(t, func() bool { return first[1].r.idle(first[1].r.stream) }, connectIn, time.Millisecond, "rank 1 waits for rows that rank 0 kept")
			checkRows(first, 1)
			second[1].dispatch()
			h.ends("second operation")
			checkRows(second, 0)
		})
	}
}

// idle reports whether the device has done all that is on a stream.
func (r *rank) idle(stream uint64) (idle bool) {
	r.must(func() error {
		idle = r.emu.StreamQuery(libcuda.Stream(stream)) == nil
		return nil
	})
	return idle
}
