package cuda_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/telemetry"
)

// gated is a domain that holds messages to remote ranks while its gate is shut, or that
// has a carrier that breaks.
type gated struct {
	domain.Domain
	remote gatedRemote
}

type gatedRemote struct {
	domain.RemoteRings
	gate   atomic.Pointer[chan struct{}] // nil: it is open
	looked atomic.Bool                   // at what is untaken, while the gate was shut
	defect atomic.Bool
}

func (g *gated) Remote() domain.Remote {
	if g.Domain.Remote() == nil {
		return nil
	}
	return &g.remote
}

// shut returns what opens it again.
func (g *gated) shut() (open func()) {
	gate := make(chan struct{})
	g.remote.gate.Store(&gate)
	return func() {
		if g.remote.gate.CompareAndSwap(&gate, nil) {
			close(gate)
		}
	}
}

func (f *gatedRemote) Post(rank int, n int64) error {
	if gate := f.gate.Load(); gate != nil {
		<-*gate
	}
	if f.defect.Load() {
		panic("the carrier is broken")
	}
	return f.RemoteRings.Post(rank, n)
}

func (f *gatedRemote) Untaken() rankset.Set {
	if f.gate.Load() != nil {
		f.looked.Store(true)
	}
	return f.RemoteRings.Untaken()
}

// newGated makes two ranks on two hosts.
func newGated(t *testing.T) (ranks []*rank, gates []*gated) {
	h := newHostsOver(t, "ab", func(dom domain.Domain) domain.Domain {
		g := &gated{Domain: dom, remote: gatedRemote{RemoteRings: dom.Remote().(domain.RemoteRings)}}
		gates = append(gates, g)
		return g
	})
	return h.ranks, gates
}

// TestHostsDrainWhatWasPushed: a rank closes, or prepares an update, right after
// its device has pushed its last outputs, and before the proxy has posted them.
// It stays until the other one has them.
func TestHostsDrainWhatWasPushed(t *testing.T) {
	for name, leave := range map[string]func(b *cuda.Buffer) error{
		"close":   func(b *cuda.Buffer) error { return b.Close() },
		"prepare": func(b *cuda.Buffer) error { _, err := b.Prepare(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ranks, gates := newGated(t)
			ranks[0].SetMaxDrain(connectIn)
			all := ops(t, ranks, 61)
			for i := range all[1].ids.values {
				all[1].ids.values[i] = 0 // an expert of rank 0
			}
			for _, o := range all {
				o.dispatch()
			}
			for _, o := range all {
				o.r.sync()
			}
			open := gates[0].shut()
			defer open()
			all[1].combine()
			all[0].combin.Device.X = all[0].res.RecvX
			_, err := ranks[0].Combine(all[0].res.Handle, &all[0].combin, ep.PhaseSent)
			require.NoError(t, err)
			ranks[0].sync()
			left := make(chan error, 1)
			go func() { left <- leave(ranks[0].Buffer) }()
			// It must not come so far; time only lets a mistake show.
			for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end) && !gates[0].remote.looked.Load(); {
				time.Sleep(time.Millisecond)
			}
			early := gates[0].remote.looked.Load()
			open()
			ranks[1].sync()
			require.NoError(t, <-left)
			all[1].check()
			require.False(t, early, "it has looked at what is untaken before all was posted")
		})
	}
}

// TestHostsSayWhyTheProxyFailed: a call's error says what happened on the host.
func TestHostsSayWhyTheProxyFailed(t *testing.T) {
	ranks, gates := newGated(t)
	gates[0].remote.defect.Store(true)
	o := ops(t, ranks, 62)[0]
	o.dispatch()
	o.r.sync()
	err := o.r.Err()
	require.ErrorIs(t, err, ep.ErrClosed)
	require.ErrorContains(t, err, "takes no more descriptors")
	require.ErrorContains(t, err, "the carrier is broken")
}

// TestHostsPaths: a remote rank is reached by messages from Connect to Leave.
func TestHostsPaths(t *testing.T) {
	h := openHosts(t, "ab", true)
	for r, dom := range h.meet() {
		h.ranks = append(h.ranks, newRankOn(t, h.devs[r], h.emu, dom, configOf(t, 2)))
	}
	t.Cleanup(func() { closeAll(h.ranks) })
	path := func(want string) {
		for r, one := range h.ranks {
			require.Equal(t, want, one.Path(1-r))
			require.Equal(t, "self", one.Path(r))
		}
	}
	path("")
	if !cudatest.OnDevice() {
		h.emu.FailAfter("cuMemcpyHtoDAsync_v2", 0, libcuda.ErrOutOfMemory)
		require.Error(t, h.ranks[0].Connect(connectIn))
		path("")
	}
	for _, one := range h.ranks {
		require.NoError(t, one.Connect(connectIn))
	}
	path("messages")
	for _, one := range h.ranks {
		require.NoError(t, one.Leave())
	}
	path("")
}

// TestHostsLeftIsNoLoss: ranks of other hosts also see that a rank leaves by itself.
func TestHostsLeftIsNoLoss(t *testing.T) {
	cfg := configOf(t, 2)
	cfg.SlowAfter = -1 // or a machine under load has more to tell
	h := openHostsAs(t, "ab", true, cfg).connect(func(dom domain.Domain) domain.Domain { return dom })
	roundOf(ops(t, h.ranks, 160))
	_, err := h.ranks[1].Prepare()
	require.NoError(t, err)
	var events []telemetry.Event
	require.Eventually(t, func() bool {
		events, _ = h.ranks[0].Events(0)
		return len(events) > 0
	}, connectIn, time.Millisecond)
	require.Len(t, events, 1)
	require.Equal(t, telemetry.Left, events[0].Kind)
	require.Equal(t, 1, events[0].Rank)
}
