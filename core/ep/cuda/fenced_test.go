package cuda_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/membership"
)

// beside is a domain that makes ranks seem to be other processes of this host: one per
// rank, or the one that house says.
type beside struct {
	*drowsy
	kills atomic.Int32
	fails error
	house int
}

type another struct {
	domain.Process
	d    *beside
	rank int
}

func (d *beside) Process(rank int) domain.Process {
	p := d.drowsy.Process(rank)
	if p == nil {
		return nil
	}
	return another{p, d, rank}
}

func (p another) PID() int {
	if p.d.house != 0 {
		return p.d.house
	}
	return 1000 + p.rank
}

func (p another) End() error {
	p.d.kills.Add(1)
	return p.d.fails
}

// TestFencedAreEnded: if that was asked for, a member ends a rank that was taken out and
// does not quiesce, once; a rank that quiesces is not ended.
func TestFencedAreEnded(t *testing.T) {
	const soon = 10 * time.Millisecond
	for name, c := range map[string]struct {
		after time.Duration
		loud  bool // rank 1 does not notice that it is out
		fails error
		kills int32
		why   string
	}{
		"loud":          {after: soon, loud: true, kills: 1, why: "its process was killed ("},
		"not to be had": {after: soon, loud: true, fails: errors.New("no such luck"), kills: 1, why: "cannot be: no such luck"},
		"quiesced":      {after: time.Nanosecond},
		"not asked for": {loud: true},
	} {
		t.Run(name, func(t *testing.T) {
			emu := cudatest.Emulate(t)
			doms := inproc.New(2, layout.ControlBytes)
			first, second := &beside{drowsy: newDrowsy(doms[0]), fails: c.fails}, newDrowsy(doms[1])
			cfg := configOf(t, 2)
			cfg.EndAfter = c.after
			group := []*rank{newRank(t, emu, first, cfg), newRank(t, emu, second, cfg)}
			t.Cleanup(func() {
				first.release()
				second.release()
				closeAll(group)
			})
			for _, r := range group {
				require.NoError(t, r.Connect(connectIn))
			}
			if c.loud {
				second.hold()
			} else {
				first.hold() // it looks once rank 1 is quiesced
			}
			require.True(t, membership.Fence(doms[0].Members(), membership.Members(doms[0].Members().Load()).Epoch(), 0, 1))
			if c.why != "" {
				require.Eventually(t, func() bool { return first.kills.Load() == c.kills }, connectIn, time.Millisecond)
			} else if !c.loud {
				group[1].isQuiesced()
				first.release()
			}
			first.await(50)
			require.Equal(t, c.kills, first.kills.Load())
			events, _ := group[0].Events(0)
			if c.why == "" {
				for _, ev := range events {
					require.NotContains(t, ev.Why, "process")
				}
				return
			}
			require.Contains(t, events[len(events)-1].Why, c.why)
		})
	}
}

// TestWhoIsOutEndsNobody: it may be on the wrong side. Not even one that was out
// before it, when it updates and waits for that one.
func TestWhoIsOutEndsNobody(t *testing.T) {
	emu := cudatest.Emulate(t)
	doms := inproc.New(3, layout.ControlBytes)
	first, third := &beside{drowsy: newDrowsy(doms[0])}, newDrowsy(doms[2])
	cfg := configOf(t, 3)
	cfg.EndAfter = time.Hour
	group := []*rank{newRank(t, emu, first, cfg), newRank(t, emu, doms[1], cfg), newRank(t, emu, third, cfg)}
	t.Cleanup(func() {
		third.release()
		closeAll(group)
	})
	for _, r := range group {
		require.NoError(t, r.Connect(connectIn))
	}
	epoch := membership.Members(doms[1].Members().Load()).Epoch()
	third.hold()
	require.True(t, membership.Fence(doms[1].Members(), epoch, 1, 2))
	first.await(10) // it has seen that
	require.True(t, membership.Fence(doms[1].Members(), epoch, 1, 0))
	group[0].isQuiesced()
	group[0].SetEndAfter(time.Nanosecond)
	require.ErrorIs(t, group[0].Err(), ep.ErrFenced)
	_, err := group[0].Prepare()
	require.NoError(t, err)
	require.ErrorContains(t, group[0].Install(epoch+1, 0, nil, 50*time.Millisecond), "may still write")
	require.Zero(t, first.kills.Load())
}

// TestHousemateIsKept: a process with a rank that was not taken out is killed when
// that is out, too, and not before, also if that leaves.
func TestHousemateIsKept(t *testing.T) {
	for name, leaves := range map[string]bool{"member": false, "left": true} {
		t.Run(name, func(t *testing.T) {
			emu := cudatest.Emulate(t)
			doms := inproc.New(3, layout.ControlBytes)
			first := &beside{drowsy: newDrowsy(doms[0]), house: 1000}
			out, mate := newDrowsy(doms[1]), newDrowsy(doms[2])
			cfg := configOf(t, 3)
			cfg.EndAfter = time.Nanosecond
			group := []*rank{newRank(t, emu, first, cfg), newRank(t, emu, out, cfg), newRank(t, emu, mate, cfg)}
			t.Cleanup(func() {
				out.release()
				mate.release()
				closeAll(group)
			})
			for _, r := range group {
				require.NoError(t, r.Connect(connectIn))
			}
			fence := func(rank int) {
				m := doms[0].Members()
				require.True(t, membership.Fence(m, membership.Members(m.Load()).Epoch(), 0, rank))
			}
			out.hold()
			if leaves {
				require.NoError(t, group[2].Close())
			}
			fence(1)
			first.await(20)
			require.Zero(t, first.kills.Load())
			require.Equal(t, 1, group[0].numEvents("is not as long as it holds rank 2"))
			if leaves {
				return
			}
			mate.hold()
			fence(2)
			require.Eventually(t, func() bool { return first.kills.Load() == 2 }, connectIn, time.Millisecond)
		})
	}
}

// numEvents counts events that say something.
func (r *rank) numEvents(why string) (n int) {
	events, _ := r.Events(0)
	for _, ev := range events {
		if strings.Contains(ev.Why, why) {
			n++
		}
	}
	return n
}
