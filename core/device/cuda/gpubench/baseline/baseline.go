// Package baseline is a way to dispatch and combine that others take: four
// copies of each row instead of one. It is there to be compared with on the same
// device, in the same run, and for nothing else: no program but benchmarks has
// it.
package baseline

import (
	_ "embed"
	"errors"
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/device/cuda/kernels"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/libnvrtc"
)

//go:embed baseline.cu
var text string

// Compile makes its code for a target such as "sm_90".
func Compile(lib *libnvrtc.Library, target string) ([]byte, error) {
	image, err := kernels.CompileText(lib, target, text)
	return image.Code, err
}

// args is mw_four_args.
type args struct {
	X, TopkIdx, Weights, Out                 uint64
	Staging, Packed, Scales, SrcInfo         uint64
	Count, Ranges, Regions                   uint64
	PlacesOff, MessageBytes, RowBytes, Op    int64
	Rank, NumRanks, NumExperts, LocalExperts int32
	NumTokens, Hidden, TopK, FP8             int32
}

const (
	headBytes     = 16
	blocksPerPair = 8
)

// The kernels, in the order of an operation.
var names = [...]string{
	"moewire_four_send", "moewire_four_notify", "moewire_four_receive",
	"moewire_four_return", "moewire_four_notify_outputs", "moewire_four_reduce",
}

const (
	send = iota
	notify
	receive
	sendOutputs
	notifyOutputs
	reduce
)

// Shape is that of an exchange. Experts is of all ranks.
type Shape struct {
	Ranks, Tokens, Hidden, TopK, Experts int
	FP8                                  bool
}

// Tensors are a rank's, in device memory: x and out bf16 [T, H], topk_idx int64
// [T, K] with different experts or -1, weights float32 [T, K].
type Tensors struct{ X, TopkIdx, Weights, Out uint64 }

// Exchange is all ranks of one process. One goroutine at a time, with the
// device's context current.
type Exchange struct {
	lib       *libcuda.Library
	caller    *libcuda.Caller
	s         Shape
	streams   []libcuda.Stream
	module    libcuda.Module
	kernels   [len(names)]libcuda.Function
	args      []*args
	events    []libcuda.Event
	allocated []libcuda.DevicePtr
	// Threads of a block, and blocks where rows are moved by token.
	Threads, Blocks uint32
}

// New loads the code and allocates what all ranks need. Close ends it. After an
// error nothing is left.
func New(lib *libcuda.Library, code []byte, s Shape, tensors []Tensors, streams []libcuda.Stream) (*Exchange, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	e := &Exchange{lib: lib, caller: lib.NewCaller(), s: s, streams: streams, Threads: 256, Blocks: uint32(max(1, s.Tokens))}
	if err := errors.Join(e.load(code), e.allocate(tensors)); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Exchange) load(code []byte) (err error) {
	if e.module, err = e.lib.ModuleLoad(code); err != nil {
		return err
	}
	for i, name := range names {
		if e.kernels[i], err = e.lib.ModuleFunction(e.module, name); err != nil {
			return err
		}
	}
	for range e.streams {
		event, err := e.lib.EventCreate(libcuda.EventDisableTiming)
		if err != nil {
			return err
		}
		e.events = append(e.events, event)
	}
	return nil
}

func (s Shape) check() error {
	switch {
	case s.Ranks < 1 || s.Tokens < 1 || s.Experts < s.Ranks || s.Experts%s.Ranks != 0:
		return fmt.Errorf("%d ranks, %d tokens and %d experts", s.Ranks, s.Tokens, s.Experts)
	case s.Hidden < 8 || s.Hidden%8 != 0 || s.FP8 && s.Hidden%512 != 0:
		return fmt.Errorf("hidden is %d, possible are multiples of 8, with fp8 of 512", s.Hidden)
	case s.TopK < 1 || s.TopK > 64:
		return fmt.Errorf("%d selections per token, 1 to 64 are possible", s.TopK)
	}
	return nil
}

// NumBytes is what all ranks need of device memory, about.
func (s Shape) NumBytes() uint64 {
	region, rows := s.regionBytes(), uint64(s.Experts)*uint64(s.Tokens)
	return uint64(s.Ranks) * (region + rows*uint64(2*s.Hidden+s.Hidden/32+4) + uint64(s.Tokens)*uint64(s.messageBytes()))
}

func (s Shape) messageBytes() int64 {
	if s.FP8 {
		return int64(headBytes + s.Hidden + (s.Hidden/32+15)/16*16)
	}
	return int64(headBytes + 2*s.Hidden)
}

// flagsBytes of a region: of rows and of outputs.
func (s Shape) flagsBytes() int64 { return (2*8*int64(s.Experts) + 127) &^ 127 }

func (s Shape) regionBytes() uint64 {
	each := max(s.messageBytes(), int64(2*s.Hidden))
	return uint64(s.flagsBytes() + int64(s.Experts)*int64(s.Tokens)*each)
}

func (e *Exchange) alloc(numBytes uint64) (uint64, error) {
	p, err := e.lib.MemAlloc(numBytes)
	if err != nil {
		return 0, err
	}
	e.allocated = append(e.allocated, p)
	return uint64(p), errors.Join(e.lib.MemsetAsync(p, 0, numBytes, e.streams[0]), e.lib.StreamSynchronize(e.streams[0]))
}

func (e *Exchange) allocate(tensors []Tensors) error {
	s := e.s
	regions := make([]uint64, s.Ranks)
	for r := range regions {
		var err error
		if regions[r], err = e.alloc(s.regionBytes()); err != nil {
			return err
		}
	}
	list, err := e.alloc(uint64(8 * s.Ranks))
	if err != nil {
		return err
	}
	to, from := libcuda.DevicePtr(list), uintptr(unsafe.Pointer(&regions[0]))
	if err := errors.Join(e.lib.CopyToDeviceAsync(to, from, uint64(8*s.Ranks), e.streams[0]),
		e.lib.StreamSynchronize(e.streams[0])); err != nil {
		return err
	}
	for r, t := range tensors {
		a := &args{
			X: t.X, TopkIdx: t.TopkIdx, Weights: t.Weights, Out: t.Out, Regions: list,
			PlacesOff: s.flagsBytes(), MessageBytes: s.messageBytes(), RowBytes: int64(2 * s.Hidden),
			Rank: int32(r), NumRanks: int32(s.Ranks), NumExperts: int32(s.Experts), LocalExperts: int32(s.Experts / s.Ranks),
			NumTokens: int32(s.Tokens), Hidden: int32(s.Hidden), TopK: int32(s.TopK),
		}
		if s.FP8 {
			a.FP8, a.RowBytes = 1, int64(s.Hidden)
		}
		e.args = append(e.args, a)
		if err := e.allocateRank(a); err != nil {
			return err
		}
	}
	return nil
}

func (e *Exchange) allocateRank(a *args) error {
	rows := uint64(e.s.Experts) * uint64(e.s.Tokens) // L R T
	for _, need := range []struct {
		at       *uint64
		numBytes uint64
	}{
		{&a.Staging, uint64(e.s.Tokens) * uint64(a.MessageBytes)},
		{&a.Packed, rows * uint64(2*e.s.Hidden)}, // of outputs, which are bf16
		{&a.Scales, rows * uint64(e.s.Hidden/32)},
		{&a.SrcInfo, 4 * rows},
		{&a.Count, 4 * uint64(e.s.Experts)},
		{&a.Ranges, 8 * uint64(e.s.Experts)},
	} {
		var err error
		if *need.at, err = e.alloc(max(need.numBytes, 16)); err != nil {
			return err
		}
	}
	return nil
}

// Packed is where a rank's rows, and then its outputs, lie: [L, R T].
func (e *Exchange) Packed(rank int) uint64 { return e.args[rank].Packed }

// Close frees everything. Nothing may run any more.
func (e *Exchange) Close() (err error) {
	for _, p := range e.allocated {
		err = errors.Join(err, e.lib.MemFree(p))
	}
	for _, event := range e.events {
		err = errors.Join(err, e.lib.EventDestroy(event))
	}
	if e.module != 0 {
		err = errors.Join(err, e.lib.ModuleUnload(e.module))
	}
	e.allocated, e.events, e.module = nil, nil, 0
	return err
}

// Dispatch launches one on all ranks.
func (e *Exchange) Dispatch() error {
	for _, a := range e.args {
		a.Op++
	}
	return errors.Join(e.launch(send, e.Blocks), e.launch(notify, 1), e.join(), e.launch(receive, e.pairBlocks()), e.join())
}

// pairBlocks is a multiple of the pairs of local expert and source, L R, of which
// there may be too few to fill a device.
func (e *Exchange) pairBlocks() uint32 {
	return uint32(e.s.Experts) * blocksPerPair
}

// Combine launches one of the outputs that lie packed.
func (e *Exchange) Combine() error {
	return errors.Join(
		e.launch(sendOutputs, e.pairBlocks()), e.launch(notifyOutputs, 1), e.join(), e.launch(reduce, e.Blocks), e.join())
}

func (e *Exchange) launch(kernel int, blocks uint32) (err error) {
	grid := libcuda.Grid{Blocks: blocks, Threads: e.Threads}
	for r, a := range e.args {
		err = errors.Join(err, e.caller.Launch(e.kernels[kernel], grid, e.streams[r], unsafe.Pointer(a), unsafe.Sizeof(*a)))
	}
	return err
}

// join has what follows on any stream wait for what is on all.
func (e *Exchange) join() (err error) {
	for r, event := range e.events {
		err = errors.Join(err, e.caller.Record(event, e.streams[r]))
	}
	for _, s := range e.streams {
		for _, event := range e.events {
			err = errors.Join(err, e.caller.Wait(s, event))
		}
	}
	return err
}
