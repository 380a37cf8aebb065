// Package probe asks a device for what the engine's kernels take for granted of it:
// order between threads of different blocks, threads of one warp that go on when they
// part, and a clock. No program but benchmarks has it.
package probe

import (
	_ "embed"
	"errors"
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/libnvrtc"
)

//go:embed probe.cu
var text string

// Compile makes its code for a target such as "sm_90".
func Compile(lib *libnvrtc.Library, target string) ([]byte, error) {
	image, err := kernels.CompileText(lib, target, text)
	return image.Code, err
}

// args is mw_probe_args.
type args struct {
	Data, Flags, Out uint64
	Rounds, Round    int64
	LimitNs, Ordered int64
}

// As in probe.cu.
const (
	words     = 2048
	line      = 16
	warpLanes = 32
)

const (
	outOld = iota
	outLate
	outLeast
	outMost
	outSteps
	outBack
	outLanes
	numOut
)

const (
	write = iota
	read
	last
	warp
	clock
)

var names = [...]string{
	"moewire_probe_write", "moewire_probe_read", "moewire_probe_last", "moewire_probe_warp", "moewire_probe_clock",
}

// asking is one run.
type asking struct {
	lib     *libcuda.Library
	caller  *libcuda.Caller
	s       Size
	kernels [len(names)]libcuda.Function
	streams [2]libcuda.Stream
	data    libcuda.DevicePtr
	flags   libcuda.DevicePtr
	out     libcuda.DevicePtr
	args    *args
	closers []func() error
}

func (s Size) dataBytes() uint64 { return uint64(max(s.Pairs*words, s.lastBlocks()*s.Threads)) * 8 }

func (s Size) flagsBytes() uint64 { return uint64(max(2*s.Pairs*line, 2*warpLanes)) * 8 }

// lastBlocks are more than all pairs, so that some begin when others have ended.
func (s Size) lastBlocks() int { return 16 * s.Pairs }

// Run asks. The device's context is current. An error is one of the driver's; what the
// device answers is for Result.Check.
func Run(lib *libcuda.Library, code []byte, s Size) (res *Result, err error) {
	a := &asking{lib: lib, caller: lib.NewCaller(), s: s}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.open(code); err != nil {
		return nil, err
	}
	res = &Result{What: "probes", Lanes: warpLanes}
	for _, ask := range []func(*Result) error{a.order, a.disorder, a.last, a.warp, a.clock} {
		if err := ask(res); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (a *asking) open(code []byte) error {
	module, err := a.lib.ModuleLoad(code)
	if err != nil {
		return err
	}
	a.closers = append(a.closers, func() error { return a.lib.ModuleUnload(module) })
	for i, name := range names {
		if a.kernels[i], err = a.lib.ModuleFunction(module, name); err != nil {
			return err
		}
	}
	for i := range a.streams {
		stream, err := a.lib.StreamCreate(0)
		if err != nil {
			return err
		}
		a.streams[i] = stream
		a.closers = append(a.closers, func() error { return a.lib.StreamDestroy(stream) })
	}
	return errors.Join(a.alloc(&a.data, a.s.dataBytes()), a.alloc(&a.flags, a.s.flagsBytes()), a.alloc(&a.out, 8*numOut))
}

func (a *asking) alloc(p *libcuda.DevicePtr, numBytes uint64) (err error) {
	if *p, err = a.lib.MemAlloc(numBytes); err == nil {
		at := *p
		a.closers = append(a.closers, func() error { return a.lib.MemFree(at) })
	}
	return err
}

func (a *asking) close() (err error) {
	for i := len(a.closers) - 1; i >= 0; i-- {
		err = errors.Join(err, a.closers[i]())
	}
	a.closers = nil
	return err
}

// begin makes everything zero.
func (a *asking) begin(ordered bool) error {
	a.args = &args{
		Data: uint64(a.data), Flags: uint64(a.flags), Out: uint64(a.out), Rounds: int64(a.s.Rounds), LimitNs: a.s.LimitNs,
	}
	if ordered {
		a.args.Ordered = 1
	}
	first := a.streams[0]
	return errors.Join(
		a.lib.MemsetAsync(a.data, 0, a.s.dataBytes(), first), a.lib.MemsetAsync(a.flags, 0, a.s.flagsBytes(), first),
		a.lib.MemsetAsync(a.out, 0, 8*numOut, first), a.lib.StreamSynchronize(first))
}

func (a *asking) launch(kernel, blocks, threads, stream int) error {
	grid := libcuda.Grid{Blocks: uint32(blocks), Threads: uint32(threads)}
	return a.caller.Launch(a.kernels[kernel], grid, a.streams[stream], unsafe.Pointer(a.args), unsafe.Sizeof(*a.args))
}

// end waits, and brings what the kernels have found.
func (a *asking) end(res *Result) (out [numOut]uint64, err error) {
	for _, stream := range a.streams {
		if err := a.lib.StreamSynchronize(stream); err != nil {
			return out, err
		}
	}
	found := make([]uint64, numOut) // on the heap: the driver has its address
	to := uintptr(unsafe.Pointer(&found[0]))
	err = errors.Join(a.lib.CopyToHostAsync(to, a.out, 8*numOut, a.streams[0]), a.lib.StreamSynchronize(a.streams[0]))
	copy(out[:], found)
	res.Late += out[outLate]
	return out, err
}

// handOver has pairs of blocks on two streams hand data over.
func (a *asking) handOver(res *Result, ordered bool) (values, old uint64, err error) {
	err = errors.Join(
		a.begin(ordered), a.launch(read, a.s.Pairs, a.s.Threads, 1), a.launch(write, a.s.Pairs, a.s.Threads, 0))
	out, failed := a.end(res)
	return uint64(a.s.Pairs) * uint64(a.s.Rounds) * words, out[outOld], errors.Join(err, failed)
}

func (a *asking) order(res *Result) error {
	values, old, err := a.handOver(res, true)
	res.Values, res.Old = res.Values+values, res.Old+old
	return err
}

func (a *asking) disorder(res *Result) (err error) {
	res.Unordered, res.OldUnordered, err = a.handOver(res, false)
	return err
}

func (a *asking) last(res *Result) error {
	if err := a.begin(true); err != nil {
		return err
	}
	for i := range a.s.Rounds {
		a.args.Round = int64(i) + 1
		if err := a.launch(last, a.s.lastBlocks(), a.s.Threads, 0); err != nil {
			return err
		}
	}
	out, err := a.end(res)
	res.Values += out[outSteps] * uint64(a.s.lastBlocks()*a.s.Threads)
	res.Old += out[outOld]
	if err == nil && out[outSteps] != uint64(a.s.Rounds) {
		return fmt.Errorf("%d of %d launches had one last block", out[outSteps], a.s.Rounds)
	}
	return err
}

func (a *asking) warp(res *Result) error {
	err := errors.Join(a.begin(true), a.launch(warp, 1, warpLanes, 0))
	out, failed := a.end(res)
	res.LanesOn = out[outLanes]
	return errors.Join(err, failed)
}

func (a *asking) clock(res *Result) error {
	err := a.begin(true)
	a.args.Rounds = int64(a.s.Clock)
	err = errors.Join(err, a.launch(clock, 1, 1, 0))
	out, failed := a.end(res)
	res.ClockMin, res.ClockMax, res.Steps, res.Back = out[outLeast], out[outMost], out[outSteps], out[outBack]
	return errors.Join(err, failed)
}
