package routing_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/op"
)

// TestDeviceAgainstPlainLoops is TestAgainstPlainLoops on the emulated device: also float32 rows, and both
// routings in any order.
func TestDeviceAgainstPlainLoops(t *testing.T) {
	for seed := range testenv.NumSeeds(t, 10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			ranks := 1 + rnd.IntN(4)
			s := shape{
				ranks: ranks, topK: 1 + rnd.IntN(8), experts: ranks * (1 + rnd.IntN(4)), hidden: 8 * (1 + rnd.IntN(16)), extra: rnd.IntN(3) * rnd.IntN(40),
			}
			w := newDeviceWorld(t, oneHost(ranks), []int{16, 1000}[seed%2])
			for range 2 {
				ins := make([]input, ranks)
				for r := range ins {
					ins[r] = randomInput(rnd, s, rnd.IntN(2)*rnd.IntN(60))
				}
				w.each(func(rank int) error { return allForms(w.groups[rank], rank, s, ins) })
			}
		})
	}
}

// deviceCrew is a device's world with a routing on every rank.
func deviceCrew(t *testing.T, ranks, tokens int, change ...func(*cuda.Config)) (*deviceWorld, *crew) {
	doms := oneHost(ranks)
	w := newDeviceWorld(t, doms, 16, change...)
	c := &crew{world: w.world, doms: doms, s: shape{ranks: ranks, topK: 3, experts: 2 * ranks, hidden: 64}, members: make([]*member, ranks)}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range ranks {
		c.ins = append(c.ins, randomInput(rnd, c.s, tokens))
	}
	c.each(c.makeAgain)
	return w, c
}

// scattersFor is a scatter with a timeout.
func (m *member) scattersFor(timeout time.Duration) error {
	a := m.scatterArgs()
	a.Timeout = timeout
	return m.scatter(a)
}

// TestDeviceLostRank: a rank that has left, or does not come, is named within the timeout; calls return
// an error from then on.
func TestDeviceLostRank(t *testing.T) {
	testenv.InAll(t)
	for name, lose := range map[string]func(w *deviceWorld){
		"closed": func(w *deviceWorld) { require.NoError(t, w.ranks[2].Close()) },
		"late":   func(*deviceWorld) {},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := deviceCrew(t, 3, 40)
			lose(w)
			began := time.Now()
			for r, err := range c.results(func(m *member) error {
				if m.rank == 2 {
					return nil
				}
				return m.scattersFor(200 * time.Millisecond)
			})[:2] {
				require.ErrorIs(t, err, ep.ErrLost, "rank %d", r)
				require.ErrorContains(t, err, "rank [2] took no part in round 1 of 3 of a scatter")
			}
			require.Less(t, time.Since(began), 20*time.Second)
			require.ErrorIs(t, c.members[0].scattersFor(0), ep.ErrLost)
		})
	}
}

// TestDeviceDifferentCalls: both ranks get an error that names both calls. On a device it ends their part in
// the epoch.
func TestDeviceDifferentCalls(t *testing.T) {
	testenv.InAll(t)
	_, c := deviceCrew(t, 2, 40)
	for i, err := range c.results(func(m *member) error {
		if m.rank == 0 {
			return m.scatter(m.scatterArgs())
		}
		return m.gather(m.gatherArgs())
	}) {
		require.ErrorIs(t, err, ep.ErrMismatch, i)
		require.ErrorContains(t, err, "scatter")
		require.ErrorContains(t, err, "gather")
	}
	require.ErrorIs(t, c.members[0].scatter(c.members[0].scatterArgs()), ep.ErrMismatch)
}

// TestDeviceAnotherRouting: rows that do not fit the routing end the epoch.
func TestDeviceAnotherRouting(t *testing.T) {
	testenv.InAll(t)
	_, c := deviceCrew(t, 2, 40)
	first := c.members[0]
	c.ins = append([]input(nil), c.ins...)
	c.ins[1] = randomInput(rand.New(rand.NewPCG(3, 3)), c.s, 30)
	c.each(c.makeAgain)
	errs := c.results(func(m *member) error {
		if m.rank == 0 {
			m = first
		}
		return m.scattersFor(time.Second)
	})
	require.ErrorContains(t, errs[0], "it uses another routing")
}

// TestDeviceMemoryIsChecked: memory of the wrong kind, none, and badly aligned. Nothing has happened.
func TestDeviceMemoryIsChecked(t *testing.T) {
	testenv.InAll(t)
	_, c := deviceCrew(t, 1, 4)
	m := c.members[0]
	at := deviceMemoryOf(m.group).at
	scatter := func(d *routing.DeviceScatter) error {
		return run(m.group.Scatter(m.Routing, &routing.ScatterArgs{RowBytes: 128, ExtraBytes: 4, WithWeights: true, Device: d, Timeout: -1}))
	}
	gather := func(d *routing.DeviceGather) error {
		return run(m.group.Gather(m.Routing, &routing.GatherArgs{Hidden: 64, WithWeights: true, Device: d, Timeout: -1}))
	}
	good := routing.DeviceScatter{X: at, Out: at, Extra: at, OutExtra: at, Weights: at, OutWeights: at}
	for want, change := range map[string]func(d *routing.DeviceScatter){
		"x is a null pointer":            func(d *routing.DeviceScatter) { d.X = 0 },
		"out is at":                      func(d *routing.DeviceScatter) { d.Out += 8 },
		"extra is a null pointer":        func(d *routing.DeviceScatter) { d.Extra = 0 },
		"out_extra is a null pointer":    func(d *routing.DeviceScatter) { d.OutExtra = 0 },
		"topk_weights is a null pointer": func(d *routing.DeviceScatter) { d.Weights = 0 },
		"out_weights is at":              func(d *routing.DeviceScatter) { d.OutWeights += 2 },
	} {
		d := good
		change(&d)
		err := scatter(&d)
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, want)
	}
	require.ErrorContains(t, scatter(nil), "Device is nil")
	require.ErrorContains(t, gather(nil), "Device is nil")
	require.ErrorContains(t, gather(&routing.DeviceGather{X: at, Out: at, Bias: [protocol.NumBiases]uint64{0, 8}}), "bias[1] is at")
	require.ErrorContains(t, gather(&routing.DeviceGather{X: at, Out: at}), "topk_weights is a null pointer")
	cpu := newCrew(t, 1, 4).members[0]
	_, err := cpu.group.Scatter(cpu.Routing, &routing.ScatterArgs{RowBytes: 128, Device: &good})
	require.ErrorContains(t, err, "the buffer is on the CPU")
	require.NoError(t, m.scatterCompact())
}

// TestDeviceCapture: a stream that is captured is refused, and stays as it is.
func TestDeviceCapture(t *testing.T) {
	testenv.InAll(t)
	w, c := deviceCrew(t, 1, 4)
	emu, m := w.emu, c.members[0]
	mem := deviceMemoryOf(m.group)
	const relaxed = 2
	require.NoError(t, mem.d.Do(func() error { return emu.BeginCapture(libcuda.Stream(mem.stream), relaxed) }))
	require.ErrorContains(t, m.scatter(m.scatterArgs()), "captured into a graph")
	_, err := makeRouting(m.group, 0, c.s, c.ins)
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.NoError(t, mem.d.Do(func() error {
		graph, err := emu.EndCapture(libcuda.Stream(mem.stream))
		return errors.Join(err, emu.GraphDestroy(graph))
	}))
	require.NoError(t, w.ranks[0].Err())
	require.NoError(t, m.scatterCompact())
}

// TestDeviceCancel: a call that is given up while it waits ends at once, for both ranks, and memory of its caller's is
// not in use when Cancel returns.
func TestDeviceCancel(t *testing.T) {
	testenv.InAll(t)
	_, c := deviceCrew(t, 2, 40)
	m, mem := c.members[0], deviceMemoryOf(c.members[0].group)
	call, err := m.group.Scatter(m.Routing, &routing.ScatterArgs{
		RowBytes: 128, Timeout: -1, Device: &routing.DeviceScatter{X: mem.at, Out: mem.at + 1<<20, Stream: mem.stream},
	})
	require.NoError(t, err)
	require.Equal(t, ep.ErrInProgress, call.Drive(10*time.Millisecond))
	call.Cancel()
	require.ErrorIs(t, call.Drive(-1), op.ErrCancelled)
	require.ErrorIs(t, c.members[1].scattersFor(time.Minute), ep.ErrLost)
	require.ErrorIs(t, m.scattersFor(time.Minute), ep.ErrLost)
}

// begins begins a scatter without a deadline on some stream, which another rank keeps waiting.
func (m *member) begins(t *testing.T, stream uint64) *routing.Call {
	call, err := m.group.Scatter(m.Routing, &routing.ScatterArgs{
		RowBytes: 128, Timeout: -1, Device: &routing.DeviceScatter{X: m.mem.at, Out: m.mem.at + 1<<20, Stream: stream},
	})
	require.NoError(t, err)
	require.Equal(t, ep.ErrInProgress, call.Drive(10*time.Millisecond))
	return call
}

// update begins an epoch of all ranks.
func (w *deviceWorld) update() {
	epoch, base := membership.Epoch(0), uint64(0)
	for _, b := range w.ranks {
		st, err := b.Prepare()
		require.NoError(w.t, err)
		epoch, base = max(epoch, st.Epoch), max(base, st.Next)
	}
	for _, b := range w.ranks {
		require.NoError(w.t, b.Install(epoch+1, base, nil, time.Minute))
	}
}

// TestDeviceCallOverAnUpdate: a call that no goroutine drives during an update says that its epoch is over, and
// leaves the next one as it is.
func TestDeviceCallOverAnUpdate(t *testing.T) {
	testenv.InAll(t)
	w, c := deviceCrew(t, 2, 40)
	call := c.members[0].begins(t, c.members[0].mem.stream)
	w.update()
	require.ErrorIs(t, call.Drive(-1), ep.ErrStaleHandle)
	c.each(c.makeAgain)
	c.each(func(r int) error { return c.members[r].scatterCompact() })
}

// TestDeviceStreamIsKept: a call that is given up ends when the device has had its time, whatever its caller has
// put on the stream before: here a scatter of another rank, which waits for a third one.
func TestDeviceStreamIsKept(t *testing.T) {
	testenv.InAll(t)
	_, c := deviceCrew(t, 3, 40, func(cfg *cuda.Config) { cfg.DrainTimeout = time.Second })
	stream := c.members[0].mem.stream
	before := c.members[1].begins(t, stream)
	call := c.members[0].begins(t, stream)
	ended := make(chan error, 1)
	go func() { ended <- call.Drive(-1) }()
	time.Sleep(20 * time.Millisecond) // it waits by then, and if not, Cancel does
	go call.Cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, op.ErrCancelled)
		require.ErrorContains(t, err, "its memory is still in use")
	case <-time.After(20 * time.Second):
		t.Error("the call waits for the caller's work")
	}
	before.Cancel()
}

// TestDeviceHeldInAnEndedEpoch: handles that are held do not hide why this rank is out.
func TestDeviceHeldInAnEndedEpoch(t *testing.T) {
	testenv.InAll(t)
	w, c := deviceCrew(t, 1, 4)
	b, m := w.ranks[0], c.members[0]
	for range 2 {
		require.NoError(t, b.Dispatch(&ep.DispatchArgs{
			Flat: true, Columns: ep.Columns{NoRouting: true}, Hidden: 64, TopK: 1, MaxTokens: 8, NumExperts: c.s.experts, Timeout: -1,
			Device: &ep.DeviceDispatch{Stream: m.mem.stream},
		}, new(cuda.Result), ep.PhaseDone))
	}
	require.ErrorIs(t, m.scattersFor(0), ep.ErrHeld)
	b.LeaveEpoch(b.Epoch(), ep.ErrLost)
	require.ErrorIs(t, m.scattersFor(0), ep.ErrLost)
	require.NoError(t, m.mem.d.Do(func() error { return w.emu.StreamSynchronize(libcuda.Stream(m.mem.stream)) }), "what the dispatches left")
}
