package cpu_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// changedDomain shows where the latest message lies, to the code that changes it.
type changedDomain struct {
	domain.Domain
	remote *changedRemote
}

func (d *changedDomain) Remote() domain.Remote { return d.remote }

type changedRemote struct {
	domain.Remote
	latest []byte
}

func (f *changedRemote) Next(rank int) []byte {
	if msg := f.Remote.Next(rank); msg != nil {
		f.latest = msg
		return msg
	}
	return nil
}

// changingKernels overwrite a message after they have stored its rows: its lists were
// checked, and are used afterwards.
type changingKernels struct {
	device.Kernels
	remote  *changedRemote
	changed atomic.Int64
}

func (k *changingKernels) Place(batch *device.PlaceBatch) {
	k.Kernels.Place(batch)
	if len(k.remote.latest) > 100 { // rows, not words
		for i := range k.remote.latest {
			k.remote.latest[i] = 0xff
		}
		k.changed.Add(1)
	}
}

// TestMessagesThatChange: a sender that writes to a message once more changes nothing of
// what was checked.
func TestMessagesThatChange(t *testing.T) {
	overHosts = hostPlacements[0].of
	t.Cleanup(func() { overHosts = nil })
	for _, preReduce := range []bool{false, true} {
		s := shape{ranks: 2, maxTokens: 8, hidden: 64, experts: 4, topk: 3, preReduce: preReduce}
		w := &world{t: t, doms: newDomains(2, rankset.Of(0, 1)), bufs: make([]*cpu.Buffer, 2)}
		kerns := make([]*changingKernels, 2)
		for r, dom := range w.doms {
			remote := &changedRemote{Remote: dom.Remote()}
			kerns[r] = &changingKernels{Kernels: kernels.NewReference(), remote: remote}
			var err error
			w.bufs[r], err = cpu.New(&changedDomain{dom, remote}, kerns[r], ep.Config{NumBytes: 16 << 20})
			require.NoError(t, err)
			t.Cleanup(func() { _ = w.bufs[r].Close() })
		}
		for i := range 6 {
			ins := inputs(r2(i), s, uniform)
			w.each(func(r int) error { return w.roundTrip(r, s, ins) })
		}
		require.NotZero(t, kerns[0].changed.Load()+kerns[1].changed.Load())
	}
}
