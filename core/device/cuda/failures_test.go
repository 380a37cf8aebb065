package cuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// TestEveryFailureIsSaidAndLeavesNothing has every call fail that an engine's life
// makes, and every call of a caller's that goes with it.
func TestEveryFailureIsSaidAndLeavesNothing(t *testing.T) {
	emu := emulate(t)
	failed := cudatest.Sweep{Short: testing.Short(), Life: func() error { return live(emu) }, Times: 80, Unheard: []string{synchronizes}}.Run(t, emu)
	require.Subset(t, failed, []string{
		"cuLaunchKernel", "cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2", "cuMemUnmap", "cuGraphLaunch",
		"cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuStreamEndCapture", "cuMemFreeHost",
	})
}

const synchronizes = "cuCtxSynchronize"

// TestEveryFailureWithARemoteRank: the same with what an engine has for one, which is lost
// before anything begins, so that no kernel waits for it.
func TestEveryFailureWithARemoteRank(t *testing.T) {
	testenv.InAll(t)
	emu := emulate(t)
	before := emu.Calls("cuLaunchKernel")
	require.NoError(t, live(emu))
	local := emu.Calls("cuLaunchKernel") - before
	require.NoError(t, liveRemote(emu))
	require.Greater(t, emu.Calls("cuLaunchKernel")-before-local, local, "those for remote ranks, too")
	failed := cudatest.Sweep{
		Life: func() error { return liveRemote(emu) }, Times: 8, Turns: true, Unheard: []string{synchronizes},
	}.Run(t, emu)
	require.Subset(t, failed, []string{"cuMemcpyHtoDAsync_v2", "cuLaunchKernel", "cuMemHostAlloc", "cuMemFreeHost", "cuMemUnmap"})
}

// life is one rank that does all that an engine can, up to the first error.
type life struct {
	remote   bool
	queue    *HostMemory
	d        *Device
	e        *Engine
	tensors  *Memory
	stream   libcuda.Stream
	side     libcuda.Stream
	event    libcuda.Event
	captured bool
	ends     int
	graph    libcuda.Graph
	exec     libcuda.GraphExec
	call     Dispatch
}

// live is one life: it frees all that it has, whatever happens. What a call could
// not begin to free it frees again.
func live(emu *cudatest.Driver) error { return (&life{}).live(emu) }

func liveRemote(emu *cudatest.Driver) error { return (&life{remote: true}).live(emu) }

func (l *life) live(emu *cudatest.Driver) error {
	err := l.begin(emu)
	for _, step := range []func() error{l.exchange, l.aside, l.record, l.replay} {
		if err == nil {
			err = step()
		}
	}
	return errors.Join(err, l.end(), l.end(), l.end())
}

func (l *life) begin(emu *cudatest.Driver) (err error) {
	if l.d, err = Open(emu.Library, 0, []byte("kernels\x00")); err != nil {
		return err
	}
	ranks := 1
	if l.remote {
		ranks = 2
	}
	l.call.Shape = layout.Shape{MaxTokens: 2, Hidden: 128, NumExperts: int64(2 * ranks), NumRanks: int64(ranks)}
	slabs, err := layout.Of(l.call.Shape)
	if err != nil {
		return err
	}
	cfg := Config{NumRanks: ranks, NumSlots: 2, SlabBytes: slabs.SizeBytes, MaxSelections: 8, MaxExperts: 4}
	if l.e, err = NewEngine(l.d, cfg); err != nil {
		return err
	}
	l.e.threads = threads{plan: 8, row: 8, wait: 8}
	if l.tensors, err = l.d.Alloc(4096); err != nil {
		return err
	}
	if err := l.d.Do(l.makeStreams); err != nil {
		return err
	}
	if err := l.e.Join(1); err != nil {
		return err
	}
	l.e.SetMembers(1<<protocol.EpochShift | 1)
	if err := l.e.Restart(0); err != nil || !l.remote {
		return err
	}
	return l.openMailbox()
}

// openMailbox says where messages to rank 1 would go.
func (l *life) openMailbox() (err error) {
	const length, mail = 16, 1 << 10
	if l.queue, err = l.d.AllocHost(uint64(fifo.Words(length))*8 + mail); err != nil {
		return err
	}
	at := l.queue.Address()
	return l.e.SetMailbox(Mailbox{Ranks: rankset.Of(1), Words: at + mail, Length: length, Mail: at, MessageBytes: 1 << 12})
}

func (l *life) makeStreams() (err error) {
	for _, s := range []*libcuda.Stream{&l.stream, &l.side} {
		if *s, err = l.d.lib.StreamCreate(0); err != nil {
			return err
		}
	}
	l.event, err = l.d.lib.EventCreate(libcuda.EventDisableTiming)
	return err
}

// exchange is a dispatch of one token, a combine and a release, waited for.
func (l *life) exchange() error {
	if err := l.launch(); err != nil {
		return err
	}
	if err := l.d.Do(func() error { return l.d.lib.StreamSynchronize(l.stream) }); err != nil {
		return err
	}
	if out := cudatest.Slice[uint16](l.tensors.Address()+1024, 128); out[0] != bf16(1) || out[127] != bf16(1) {
		return fmt.Errorf("the sum is %v", out)
	}
	return l.d.Synchronize()
}

func (l *life) launch() error {
	at := l.tensors.Address()
	c := &l.call
	c.NumTokens, c.TopK, c.TimeoutNs, c.Stream = 1, 1, -1, uint64(l.stream)
	c.X, c.TopkIdx, c.RecvCount, c.Layout = at, at+512, at+2048, at+2304
	for i := range cudatest.Slice[uint16](at, 128) {
		cudatest.Slice[uint16](at, 128)[i] = bf16(1)
	}
	cudatest.Slice[float32](at+768, 1)[0] = 1
	slabs, _ := layout.Of(c.Shape)
	back := &Combine{Call: c.Call, Outputs: l.e.Slab(0) + uint64(slabs.RowsOff), Weights: at + 768, Out: at + 1024}
	again := *back
	again.Again = true
	for _, step := range []func() error{
		func() error { return l.e.Send(c) }, func() error { return l.e.Receive(c) },
		func() error { return l.e.Publish(back) }, func() error { return l.e.Reduce(back) },
		func() error { return l.e.Publish(&again) }, func() error { return l.e.Reduce(&again) },
		func() error { return l.e.SendRest(&c.Call) }, func() error { return l.e.Release(&c.Call) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// aside has another stream wait for what was launched.
func (l *life) aside() error {
	err := l.d.Do(func() error {
		if err := l.e.calls.Record(l.event, l.stream); err != nil {
			return err
		}
		if err := l.e.calls.Wait(l.side, l.event); err != nil {
			return err
		}
		return l.d.lib.StreamSynchronize(l.side)
	})
	return err
}

// record captures another exchange. Its caller ends the capture, whatever happens.
func (l *life) record() error {
	return l.d.Do(func() error {
		if err := l.d.lib.BeginCapture(l.stream, libcuda.CaptureModeRelaxed); err != nil {
			return err
		}
		l.captured = true
		records, err := l.e.Captures(uint64(l.stream))
		if err == nil && !records {
			err = errors.New("nothing is recorded")
		}
		if err == nil {
			err = l.launch()
		}
		return errors.Join(err, l.endCapture())
	})
}

func (l *life) endCapture() (err error) {
	if !l.captured {
		return nil
	}
	if l.graph, err = l.d.lib.EndCapture(l.stream); err == nil {
		l.captured = false
	}
	return err
}

func (l *life) replay() error {
	err := l.d.Do(func() (err error) {
		if l.exec, err = l.d.lib.GraphInstantiate(l.graph); err == nil {
			err = l.d.lib.GraphLaunch(l.exec, l.stream)
		}
		return err
	})
	return errors.Join(err, l.d.Synchronize())
}

// end frees what is there: each of it once, if the driver is asked at all.
func (l *life) end() error {
	if l.d == nil {
		return nil
	}
	var all []error
	if !l.d.closed {
		all = append(all, l.d.Do(l.endCapture), l.d.Synchronize(), l.d.Do(l.freeOwn))
	}
	if l.tensors != nil {
		all = append(all, l.tensors.Close())
	}
	if l.e != nil {
		all = append(all, l.e.Close())
	}
	if l.queue != nil {
		all = append(all, l.queue.Close())
	}
	// What could not be freed is freed by the next end, and then the device.
	if l.ends++; errors.Join(all...) == nil || l.ends > 1 {
		all = append(all, l.d.Close())
	}
	return errors.Join(all...)
}

func (l *life) freeOwn() error {
	lib := l.d.lib
	var all []error
	if l.exec != 0 {
		all = append(all, lib.GraphExecDestroy(l.exec))
	}
	if l.graph != 0 {
		all = append(all, lib.GraphDestroy(l.graph))
	}
	if l.event != 0 {
		all = append(all, lib.EventDestroy(l.event))
	}
	for _, s := range []libcuda.Stream{l.stream, l.side} {
		if s != 0 {
			all = append(all, lib.StreamDestroy(s))
		}
	}
	l.exec, l.graph, l.event, l.stream, l.side = 0, 0, 0, 0, 0
	return errors.Join(all...)
}

// TestClosedMemoryIsNotShared: memory that could not be freed is not shared, and its
// owner closes it again.
func TestClosedMemoryIsNotShared(t *testing.T) {
	emu := emulate(t)
	d, err := Open(emu.Library, 0, emu.Code(t))
	require.NoError(t, err)
	m, err := d.Alloc(1)
	require.NoError(t, err)
	emu.FailAfter("cuCtxPushCurrent_v2", 0, libcuda.ErrOutOfMemory)
	require.ErrorIs(t, m.Close(), libcuda.ErrOutOfMemory)
	_, err = m.Share(d)
	require.ErrorContains(t, err, "the memory is closed")
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.NoError(t, d.Close())
}
