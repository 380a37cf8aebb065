package cuda_test

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// crossing is a rank with one slot. Its caller continues on a second stream, while the
// first one has work that does not end before open.
type crossing struct {
	*rank
	second uint64
	gate   []*rank // two ranks of another group: the first waits for the second
	enter  []*op
	opened sync.Once
	events []libcuda.Event
}

func newCrossing(t *testing.T) *crossing {
	emu := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 81))
	emu.Schedule(rng.Uint64(), 16, 8)
	cfg := configOf(t, 1)
	cfg.NumSlots = 1
	c := &crossing{rank: newRank(t, emu, inproc.New(1, layout.ControlBytes)[0], cfg)}
	for _, dom := range inproc.New(2, layout.ControlBytes) {
		c.gate = append(c.gate, newRank(t, emu, dom, configOf(t, 2)))
	}
	t.Cleanup(c.end)
	for _, r := range append([]*rank{c.rank}, c.gate...) {
		require.NoError(t, r.Connect(connectIn))
	}
	c.must(func() error {
		s, err := emu.StreamCreate(0)
		c.second = uint64(s)
		return err
	})
	for _, r := range c.gate {
		c.enter = append(c.enter, newOp(r, rng))
	}
	return c
}

// open lets the first stream go on.
func (c *crossing) open() {
	c.opened.Do(func() {
		if c.enter[0].res.Handle != 0 {
			c.enter[1].dispatch()
		}
	})
}

func (c *crossing) end() {
	c.open()
	c.sync()
	c.must(func() error {
		if err := c.emu.StreamSynchronize(libcuda.Stream(c.second)); err != nil {
			return err
		}
		for _, e := range c.events {
			if err := c.emu.EventDestroy(e); err != nil {
				return err
			}
		}
		return c.emu.StreamDestroy(libcuda.Stream(c.second))
	})
	closeAll(append(c.gate, c.rank))
}

// follow puts one stream behind what another one has now.
func (c *crossing) follow(stream, other uint64) {
	c.must(func() error {
		e, err := c.emu.EventCreate(libcuda.EventDisableTiming)
		if err != nil {
			return err
		}
		c.events = append(c.events, e)
		calls := c.emu.NewCaller()
		if err := calls.Record(e, libcuda.Stream(other)); err != nil {
			return err
		}
		return calls.Wait(libcuda.Stream(stream), e)
	})
}

// cross puts the second stream behind the first one, as a caller does before a
// call there. What the first one gets from then on waits.
func (c *crossing) cross() {
	c.follow(c.second, c.stream)
	c.enter[0].dispatch()
	c.follow(c.stream, c.gate[0].stream)
}

// arrives waits for all of the second stream.
func (c *crossing) arrives() {
	require.Eventually(c.t, func() bool { return c.idle(c.second) }, connectIn, time.Millisecond, "the second stream waits for the first one")
	require.NoError(c.t, c.Err())
}

// ops draws n operations; those behind the first are on the second stream.
func (c *crossing) ops(n int) (all []*op) {
	rng := rand.New(rand.NewPCG(testenv.Seed(c.t), 82))
	for i := range n {
		o := newOp(c.rank, rng)
		if i > 0 {
			o.args.Device.Stream, o.combin.Device.Stream = c.second, c.second
		}
		all = append(all, o)
	}
	return all
}

// TestPendingSumBeforeADispatch: the sum that a handle has pending is made before another
// dispatch takes its slot, though that is on another stream.
func TestPendingSumBeforeADispatch(t *testing.T) {
	c := newCrossing(t)
	all := c.ops(2)
	ticket := all[0].half()
	c.cross()
	all[1].run()
	c.arrives()
	all[0].check()
	all[1].check()
	require.NoError(t, c.Reduce(ticket))
	c.open()
	c.sync()
	require.NoError(t, c.Err())
}

// TestPendingRowsBeforeACombine: a combine on another stream than its dispatch has the
// rows, and how many there are.
func TestPendingRowsBeforeACombine(t *testing.T) {
	c := newCrossing(t)
	o := c.ops(1)[0]
	require.NoError(t, c.Dispatch(&o.args, &o.res, ep.PhaseSent))
	c.cross()
	o.combin.Device.Stream = c.second
	o.combine()
	c.arrives()
	checkRows([]*op{o}, 0)
	o.check()
	require.NoError(t, c.Receive(o.res.Handle))
}

// TestPendingSumBeforeACombine: so has the handle's next combine.
func TestPendingSumBeforeACombine(t *testing.T) {
	c := newCrossing(t)
	o := c.ops(1)[0]
	ticket := o.half()
	c.cross()
	again := *o
	again.out = newTensor[uint16](c.rank, len(o.out.values))
	again.combin.Device.Stream, again.combin.Device.Out = c.second, again.out.at
	again.combine()
	c.arrives()
	o.check()
	again.check()
	require.NoError(t, c.Reduce(ticket))
}

// capture records what f launches on a stream; end frees the graph.
func (c *crossing) capture(stream uint64, f func()) (exec libcuda.GraphExec, end func()) {
	runtime.LockOSThread() // the thread that has begun a capture ends it
	defer runtime.UnlockOSThread()
	c.must(func() error { return c.emu.BeginCapture(libcuda.Stream(stream), libcuda.CaptureModeThreadLocal) })
	f()
	c.must(func() error {
		captured, err := c.emu.EndCapture(libcuda.Stream(stream))
		if err != nil {
			return err
		}
		if exec, err = c.emu.GraphInstantiate(captured); err != nil {
			return err
		}
		return c.emu.GraphDestroy(captured)
	})
	return exec, func() { c.must(func() error { return c.emu.GraphExecDestroy(exec) }) }
}

func (c *crossing) replay(exec libcuda.GraphExec, stream uint64) {
	c.must(func() error { return c.emu.GraphLaunch(exec, libcuda.Stream(stream)) })
}

// TestPendingSumIsNotRecorded: a graph has no part of a call that runs.
func TestPendingSumIsNotRecorded(t *testing.T) {
	c := newCrossing(t)
	all := c.ops(2)
	all[0].half()
	exec, end := c.capture(c.second, all[1].run)
	defer end()
	c.sync()
	all[0].check()
	c.follow(c.second, c.stream)
	for range 2 {
		c.replay(exec, c.second)
	}
	c.arrives()
	all[1].check()
}

// TestPendingSumIsRecorded: a graph has all of its calls, though one that runs needs
// the rest of them.
func TestPendingSumIsRecorded(t *testing.T) {
	c := newCrossing(t)
	all := c.ops(2)
	exec, end := c.capture(c.stream, func() {
		all[0].half()
		all[1].run()
	})
	defer end()
	c.arrives()
	all[1].check()
	c.follow(c.stream, c.second)
	for range 2 {
		c.replay(exec, c.stream)
	}
	c.sync()
	require.NoError(t, c.Err())
	all[0].check()
}

// TestPendingSumOfAGraph: a graph that is complete without a second phase is not given
// one by a call that runs, which only takes the slot.
func TestPendingSumOfAGraph(t *testing.T) {
	c := newCrossing(t)
	all := c.ops(2)
	all[1].args.Device.Stream, all[1].combin.Device.Stream = c.stream, c.stream
	var ticket cuda.ReduceTicket
	_, end := c.capture(c.stream, func() { ticket = all[0].half() })
	defer end()
	all[1].run()
	c.sync()
	require.NoError(t, c.Err())
	all[1].check()
	require.ErrorIs(t, c.Reduce(ticket), ep.ErrStaleHandle)
}

// TestPendingIsNotRecorded: what ran has its second phase nowhere but where things run.
// If only streams are left that record, the call says so, and nothing has happened.
func TestPendingIsNotRecorded(t *testing.T) {
	c := newCrossing(t)
	all := c.ops(3)
	for _, o := range all {
		o.args.Device.Stream, o.combin.Device.Stream = c.stream, c.stream
	}
	ticket := all[0].half()
	_, end := c.capture(c.stream, func() {
		require.ErrorIs(t, c.Dispatch(&all[1].args, &all[1].res, ep.PhaseDone), ep.ErrInvalid)
		require.ErrorIs(t, c.Reduce(ticket), ep.ErrInvalid)
	})
	end()
	require.NoError(t, c.Reduce(ticket))
	c.sync()
	all[0].check()
	require.NoError(t, c.Dispatch(&all[2].args, &all[2].res, ep.PhaseSent))
	_, end = c.capture(c.stream, func() {
		all[2].combin.Device.X = all[2].res.RecvX
		_, err := c.Combine(all[2].res.Handle, &all[2].combin, ep.PhaseDone)
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorIs(t, c.Receive(all[2].res.Handle), ep.ErrInvalid)
	})
	end()
	all[2].combine()
	c.sync()
	require.NoError(t, c.Err())
	all[2].check()
}
