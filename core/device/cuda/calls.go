package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// Call is one operation, in a slot that the caller has chosen. Addresses are
// the device's. All of it is copied at the launch.
type Call struct {
	Shape     layout.Shape
	NumTokens int // T
	TopK      int
	Slot      int
	Ticket    uint64 // the same in all calls of one operation
	Flags     protocol.Flags
	Stream    uint64
	TimeoutNs int64  // of each wait; negative: none
	Active    uint64 // int32 [R], or 0
	TopkIdx   uint64 // int64 [T, K]
	WaitNs    uint64 // int64 [R], or 0: ns waited for each rank are added; nothing with NoCounters
	// Split: something else may come before the second phase, so the first one (Send,
	// Publish) does not wait until remote ranks make room for messages. What it has no
	// room for is kept, and goes with the second phase.
	Split bool
}

// Dispatch is what Send and Receive need besides.
type Dispatch struct {
	Call
	X             uint64                     // bf16 [T, H]
	Weights       uint64                     // float32 [T, K] with Form.PreReduce, or Form.Flat without NoRouting
	Extra         [protocol.NumExtras]uint64 // [T, bytes] for each extra column of the shape
	RecvCount     uint64                     // int32 [L]
	Layout        uint64                     // int64 [L, R]
	Stats         uint64                     // int64 [R], or 0
	PeersHaveMore uint64                     // int32 [1], or 0: 1 if a rank whose rows count has Form.HasMore
}

// Combine is what Publish and Reduce need besides.
type Combine struct {
	Call
	Outputs uint64 // [L, C, H], or 0: in the slab
	Weights uint64 // float32 [T, K]
	Out     uint64 // bf16 [T, H]
	Again   bool   // the handle was combined before
}

// threads are those of one block, by what it does. A wait, and the end of a
// plan, have one thread per rank at least.
type threads struct{ plan, row, wait uint32 }

// usual: blocksPerSM blocks of so many threads fill a multiprocessor. A row may
// have fewer (rowThreads).
var usual = threads{plan: 256, row: 256, wait: 256}

const blocksPerSM = 4

// prepare fills in what all kernels of a call share.
func (e *Engine) prepare(c *Call) (common, error) {
	s, err := layout.Of(c.Shape)
	switch {
	case err != nil:
		return common{}, err
	case s.SizeBytes > e.cfg.SlabBytes:
		return common{}, fmt.Errorf("the operation needs %d bytes per slot, the buffer has %d", s.SizeBytes, e.cfg.SlabBytes)
	case c.NumTokens*c.TopK > e.cfg.MaxSelections || int(c.Shape.NumExperts) > e.cfg.MaxExperts:
		return common{}, fmt.Errorf("%d x %d selections of %d experts, the buffer was made for %d selections of %d experts",
			c.NumTokens, c.TopK, c.Shape.NumExperts, e.cfg.MaxSelections, e.cfg.MaxExperts)
	case c.Slot < 0 || c.Slot >= e.cfg.NumSlots:
		return common{}, fmt.Errorf("slot %d of %d", c.Slot, e.cfg.NumSlots)
	}
	if err := e.CheckRemote(&s, c.TopK); err != nil {
		return common{}, err
	}
	out := e.base
	out.TimeoutNs, out.Slab = c.TimeoutNs, kernelSlab(&s)
	out.NumExperts, out.LocalExperts = int32(s.NumExperts), int32(s.LocalExperts)
	out.NumTokens, out.MaxTokens = int32(c.NumTokens), int32(s.MaxTokens)
	out.Hidden, out.TopK, out.Slot = int32(s.Hidden), int32(c.TopK), int32(c.Slot)
	out.BlockExperts = 1
	if s.Flat {
		out.BlockExperts = int32(s.NumExperts / s.NumRanks)
	}
	out.Flags, out.Active, out.TopkIdx, out.Ticket = c.Flags, c.Active, c.TopkIdx, c.Ticket
	out.WaitNs = c.WaitNs
	if e.isRemote() {
		out.Flags |= protocol.FlagRemote | protocol.Flags.Bit(protocol.FlagSplit, c.Split)
	}
	return out, nil
}

func kernelSlab(s *layout.Slab) slab {
	out := slab{
		Params: layout.Params(0), Arrive: layout.Arrive(0), Done: layout.Done(0), Counter: layout.Counter(0),
		Layout: s.LayoutOff, SrcInfo: s.SrcInfoOff, Scales: s.ScalesOff, Rows: s.RowsOff, Y: s.YOff,
		RowsPerExpert: s.RowsPerExpert, RowBytes: s.RowBytes, OutputBytes: s.OutputBytes(), ScaleWords: s.Groups(),
		Counted: layout.Announced(0), TopkIdx: s.ColumnOff[layout.ColumnTopkIdx], TopkWeights: s.ColumnOff[layout.ColumnTopkWeights],
	}
	for i := range out.Extra {
		out.Extra[i] = s.ColumnOff[layout.ColumnExtra+i]
		out.ExtraBytes[i] = int32(s.Columns[layout.ColumnExtra+i])
	}
	return out
}

// of is an address in a slot's part of private memory.
func (e *Engine) of(slot int32, off int64) uint64 {
	return e.private.Address() + uint64(e.at.slots+int64(slot)*e.at.slotBytes+off)
}

// rowBlocks is how many blocks move n rows.
func (e *Engine) rowBlocks(n int) int32 { return int32(max(1, min(n, e.d.NumSMs*blocksPerSM))) }

// begin makes the device's context current, and fills in what all kernels of
// a call share. end undoes the former.
func (e *Engine) begin(c *Call) (common, error) {
	common, err := e.prepare(c)
	if err != nil {
		return common, err
	}
	runtime.LockOSThread()
	if err := e.calls.Push(e.d.ctx); err != nil {
		runtime.UnlockOSThread()
		return common, err
	}
	return common, nil
}

func (e *Engine) end(err error) error {
	popped := e.calls.Pop()
	runtime.UnlockOSThread()
	if err == nil {
		return popped
	}
	return errors.Join(err, popped)
}

// Captures reports whether what is launched on a stream goes into a graph. Without
// the driver's answer that is not known, and nothing may be launched.
func (e *Engine) Captures(stream uint64) (bool, error) {
	runtime.LockOSThread()
	if err := e.calls.Push(e.d.ctx); err != nil {
		runtime.UnlockOSThread()
		return false, err
	}
	captured, err := e.calls.Capturing(libcuda.Stream(stream))
	return captured, e.end(err)
}

// Send plans a dispatch and places its rows.
func (e *Engine) Send(c *Dispatch) error {
	common, err := e.begin(&c.Call)
	if err != nil {
		return err
	}
	if err := e.plan(&common, c); err != nil {
		return e.end(err)
	}
	if err := e.orderRemote(c); err != nil {
		return e.end(err)
	}
	if err := e.place(&common, c); err != nil {
		return e.end(err)
	}
	return e.end(e.sendRemote(&common, c))
}

func (e *Engine) plan(common *common, c *Dispatch) error {
	s := common.Slot
	common.NumBlocks = int32(max(1, (c.NumTokens*c.TopK+int(e.threads.plan)-1)/int(e.threads.plan)))
	e.args.plan = planArgs{
		Common: *common, Count: e.of(s, e.at.count), Base: e.of(s, e.at.base), Index: e.of(s, e.at.index),
	}
	e.args.plan.Common.Flags |= protocol.Flags.Bit(protocol.FlagFill, e.cfg.DebugFill)
	if c.Flags&protocol.FlagOrdered != 0 {
		blocks := common.NumRanks * common.LocalExperts
		if err := launch(e, c.Stream, kernelNumber, blocks, e.threads.plan, &e.args.plan); err != nil {
			return err
		}
	}
	return launch(e, c.Stream, kernelPlan, common.NumBlocks, e.threads.plan, &e.args.plan)
}

func (e *Engine) place(common *common, c *Dispatch) error {
	s := common.Slot
	common.NumBlocks = e.rowBlocks(c.NumTokens)
	e.args.place = placeArgs{
		Common: *common, X: c.X, Where: e.of(s, e.at.where),
		Count: e.of(s, e.at.count), Base: e.of(s, e.at.base), Index: e.of(s, e.at.index),
		Weights: c.Weights, Kept: e.of(s, e.at.kept), Extra: c.Extra,
	}
	threads := rowThreads(common.Hidden, e.threads.row)
	return launch(e, c.Stream, e.placeKernel(common, threads), common.NumBlocks, threads, &e.args.place)
}

// Receive waits for the rows of a dispatch that was sent.
func (e *Engine) Receive(c *Dispatch) error {
	common, err := e.begin(&c.Call)
	if err != nil {
		return err
	}
	if err := e.serveRemote(&common, c.Stream, kernelRemoteTake); err != nil {
		return e.end(err)
	}
	common.NumBlocks = 1
	e.args.receive = receiveArgs{
		Common: common, RecvCount: c.RecvCount, Layout: c.Layout, Stats: c.Stats, PeersHaveMore: c.PeersHaveMore, Rows: e.of(common.Slot, e.at.rows),
		Experts: e.private.Address() + uint64(e.at.experts),
	}
	return e.end(launch(e, c.Stream, kernelReceive, 1, e.threads.wait, &e.args.receive))
}

// AwaitReaders waits until the other ranks have read the outputs of a slot's latest
// combine. Remote ranks have copies.
func (e *Engine) AwaitReaders(c *Call) error {
	common, err := e.begin(c)
	if err != nil {
		return err
	}
	return e.end(e.awaitReaders(&common, c.Stream))
}

func (e *Engine) awaitReaders(common *common, stream uint64) error {
	e.args.wait = waitArgs{Common: *common}
	return launch(e, stream, kernelAgain, 1, e.threads.wait, &e.args.wait)
}

// Publish shows a slot's outputs to the ranks that sent the rows.
func (e *Engine) Publish(c *Combine) error {
	common, err := e.begin(&c.Call)
	if err != nil {
		return err
	}
	if c.Again {
		if err := e.awaitReaders(&common, c.Stream); err != nil {
			return e.end(err)
		}
	}
	common.NumBlocks = 1
	if c.Outputs != 0 {
		common.NumBlocks = int32(e.d.NumSMs * blocksPerSM)
	}
	e.args.publish = publishArgs{Common: common, Outputs: c.Outputs, Rows: e.of(common.Slot, e.at.rows)}
	if err := launch(e, c.Stream, kernelPublish, common.NumBlocks, e.threads.row, &e.args.publish); err != nil {
		return e.end(err)
	}
	return e.end(e.sendRemoteOutputs(common, c.Stream))
}

// Reduce waits for the outputs of this rank's rows and adds them up.
func (e *Engine) Reduce(c *Combine) error {
	common, err := e.begin(&c.Call)
	if err != nil {
		return err
	}
	if err := e.serveRemote(&common, c.Stream, kernelRemoteWait); err != nil {
		return e.end(err)
	}
	use := e.private.Address() + uint64(e.at.use) + uint64(common.Slot)*8
	where := e.of(common.Slot, e.at.where)
	e.args.wait = waitArgs{Common: common, Use: use, Where: where}
	if err := launch(e, c.Stream, kernelWait, 1, e.threads.wait, &e.args.wait); err != nil {
		return e.end(err)
	}
	common.NumBlocks = e.rowBlocks(c.NumTokens)
	e.args.reduce = reduceArgs{
		Common: common, Where: where, Weights: c.Weights, Out: c.Out, Use: use,
		Kept: e.of(common.Slot, e.at.kept),
	}
	threads := rowThreads(common.Hidden, e.threads.row)
	return e.end(launch(e, c.Stream, e.reduceKernel(&common, threads), common.NumBlocks, threads, &e.args.reduce))
}

// SendRest comes before Release, or before another dispatch takes the slot, where the
// latest phase of the slot's operation is a first one: it sends what that has left,
// and waits until remote ranks make room for it, as the second phase would. Before Release
// it is also what tells remote ranks that the operation is not combined (again); before a
// dispatch those that were combined need none of it, since all later messages tell.
func (e *Engine) SendRest(c *Call) error {
	if !e.isRemote() {
		return nil
	}
	common, err := e.begin(c)
	if err != nil {
		return err
	}
	common.Counters = 0 // as in sendRemote
	common.Flags |= protocol.FlagRest
	return e.end(e.serveRemote(&common, c.Stream, kernelRemoteTake))
}

// Release gives a slot's operation back.
func (e *Engine) Release(c *Call) error {
	common, err := e.begin(c)
	if err != nil {
		return err
	}
	e.args.wait = waitArgs{Common: common}
	return e.end(launch(e, c.Stream, kernelRelease, 1, e.threads.wait, &e.args.wait))
}

// launch queues a kernel. args is part of the engine, so on the heap.
func launch[T any](e *Engine, stream uint64, kernel int, blocks int32, threads uint32, args *T) error {
	grid := libcuda.Grid{Blocks: uint32(blocks), Threads: threads}
	return e.calls.Launch(e.d.kernels[kernel], grid, libcuda.Stream(stream), unsafe.Pointer(args), unsafe.Sizeof(*args))
}
