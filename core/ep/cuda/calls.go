package cuda

import (
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
)

// Dispatch launches a dispatch on the stream: its first phase, or both. It chooses the
// slot: the one after the latest that no live handle holds. If all are held, it takes
// that of the oldest handle, which becomes stale, or, with KeepHeld, of the oldest that
// was combined. If that handle still has a sum pending, the sum comes first, on this
// call's stream. A call that is captured keeps its slot in all replays. A replay takes
// the slot from the handle that holds it then; the next use of that handle ends the
// buffer with ErrStaleHandle.
//
// ErrInvalid, ep.ErrHeld: nothing has happened. Errors of the device come late: each
// call returns what has been reported until then (Err).
func (b *Buffer) Dispatch(a *ep.DispatchArgs, res *Result, until ep.Phase) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	slab, err := b.checkDispatch(a)
	if err != nil {
		return err
	}
	j := b.pick(a.KeepHeld)
	s := &b.slots[j]
	if a.KeepHeld && s.held() {
		return ep.Held(len(b.slots), len(b.slots), uint64(s.handle)-1)
	}
	if err := b.takeOver(s, a.Device.Stream); err != nil {
		return err
	}
	b.releaseCombined(nil)
	b.handles++
	b.latest = j
	b.rememberTimeout(a.Timeout)
	*s = slot{handle: b.handles, live: true, slab: slab}
	b.receipts.set(uint64(s.handle), false)
	b.describe(s, j, a)
	s.dispatch.Split = until != ep.PhaseDone
	if err := b.markRecorded(s, s.dispatch.Split, a.Device.Stream); err != nil {
		return err
	}
	if err := b.launched(b.engine.Send(&s.dispatch)); err != nil {
		return err
	}
	b.show(s, res)
	if until == ep.PhaseDone {
		return b.receive(s)
	}
	return nil
}

func formOf(c *Config, a *ep.DispatchArgs) device.Form {
	return device.Form{
		RowType: a.RowType, OutputType: a.OutputType, Ordered: c.ordered(), PreReduce: a.PreReduce,
		Flat: a.Flat, Use: a.Use, NoRouting: a.NoRouting, HasMore: a.HasMore,
	}
}

func (b *Buffer) describe(s *slot, j int, a *ep.DispatchArgs) {
	s.dispatch = device.Dispatch{
		Call: device.Call{
			Shape: s.slab.Shape, NumTokens: a.NumTokens, TopK: a.TopK, Slot: j, Ticket: uint64(s.handle),
			Flags: formOf(&b.cfg, a).Flags(), Stream: a.Device.Stream,
			TimeoutNs: nanoseconds(a.Timeout), Active: a.Device.ActiveRanks, TopkIdx: a.Device.TopkIdx, WaitNs: a.Device.WaitNs,
		},
		X: a.Device.X, Weights: a.Device.TopkWeights, Extra: a.Device.Extra, RecvCount: a.Device.RecvCount, Layout: a.Device.LayoutRange, Stats: a.Device.Stats, PeersHaveMore: a.Device.PeersHaveMore,
	}
	if a.Device.RecvCount == 0 {
		s.dispatch.RecvCount = b.engine.Counts(j)
	}
	if a.Device.LayoutRange == 0 {
		s.dispatch.Layout = b.engine.Ranges(j)
	}
}

// show says where the results will be.
func (b *Buffer) show(s *slot, res *Result) {
	at := b.engine.Slab(s.dispatch.Slot)
	*res = Result{
		Handle: s.handle, Slot: s.dispatch.Slot, Slab: s.slab,
		RecvX: at + uint64(s.slab.RowsOff), SrcInfo: at + uint64(s.slab.SrcInfoOff), CombineX: at + uint64(s.slab.YOff),
		RecvCount: s.dispatch.RecvCount, LayoutRange: s.dispatch.Layout,
	}
	for i, off := range s.slab.ColumnOff {
		if off != 0 {
			res.Columns[i] = at + uint64(off)
		}
	}
	if s.slab.RowType.IsFP8() {
		res.Scales = at + uint64(s.slab.ScalesOff)
	}
}

// Receive launches the second phase of a dispatch, on its stream. It does nothing if
// that was launched before (known for the latest 4096 dispatches). It is refused while
// that stream records and the first phase is not part of the recording. ErrStaleHandle
// if the handle was released before.
func (b *Buffer) Receive(h Handle) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	s, err := b.find(h)
	if err != nil {
		return b.receipt(h, err)
	}
	return b.receiveOn(s, s.dispatch.Stream)
}

func (b *Buffer) receive(s *slot) error {
	if s.received {
		return nil
	}
	s.received = true
	err := b.launched(b.engine.Receive(&s.dispatch))
	b.receipts.set(uint64(s.handle), err == nil)
	return err
}

// CancelReceive gives up a dispatch if its second phase is not launched: it releases
// the handle. Else it does nothing, and cancelled is false.
func (b *Buffer) CancelReceive(h Handle, stream uint64) (cancelled bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return false, err
	}
	s, err := b.find(h)
	if err != nil || s.received {
		return false, b.receipt(h, err)
	}
	return true, b.release(s, stream)
}

// Combine launches a combine of a handle. First comes the copy of outputs that are not
// in place (PhaseSent; X is not needed when the stream has passed that), then the sum,
// which is what Reduce launches. If Receive was not called its launch comes first, on
// this call's stream, and so does the second phase of an earlier combine. A handle can
// be combined again until the next call for another one, which releases it.
func (b *Buffer) Combine(h Handle, a *ep.CombineArgs, until ep.Phase) (ReduceTicket, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.live(h)
	if err != nil {
		return 0, err
	}
	if err := b.checkCombine(s, a); err != nil {
		return 0, err
	}
	if err := b.receiveOn(s, a.Device.Stream); err != nil {
		return 0, err
	}
	if err := b.reduceOn(s, a.Device.Stream); err != nil {
		return 0, err
	}
	b.releaseCombined(s)
	b.describeCombine(s, a)
	s.combine.Split = until != ep.PhaseDone
	if err := b.markRecorded(s, s.combine.Split, a.Device.Stream); err != nil {
		return 0, err
	}
	b.rememberTimeout(a.Timeout)
	b.latestTicket++
	s.combines, s.ticket, s.pending = s.combines+1, b.latestTicket, true
	b.reduces.set(uint64(s.ticket), false)
	if err := b.launched(b.engine.Publish(&s.combine)); err != nil {
		return 0, err
	}
	if until == ep.PhaseDone {
		err = b.reduce(s)
	}
	return s.ticket, err
}

func (b *Buffer) describeCombine(s *slot, a *ep.CombineArgs) {
	c := &s.combine
	*c = device.Combine{Call: s.dispatch.Call, Outputs: a.Device.X, Weights: a.Device.TopkWeights, Out: a.Device.Out, Again: s.combines > 0}
	c.Stream, c.TimeoutNs, c.Active, c.TopkIdx = a.Device.Stream, nanoseconds(a.Timeout), a.Device.ActiveRanks, a.Device.TopkIdx
	c.WaitNs = a.Device.WaitNs
	if a.Device.X == b.combineX(s) {
		c.Outputs = 0
	}
}

// rememberTimeout remembers how long this rank's latest waits with a deadline may last.
func (b *Buffer) rememberTimeout(timeout time.Duration) {
	if timeout >= 0 {
		b.stateMu.Lock()
		b.timeout = timeout
		b.stateMu.Unlock()
	}
}

// Reduce launches a combine's sum on its stream. It does nothing if the sum was
// launched before (known for the latest 4096 combines). The next combine of the handle
// launches it, and so does another dispatch before it takes the slot. ErrStaleHandle if
// the handle was released before.
func (b *Buffer) Reduce(n ReduceTicket) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	if s := b.pendingReduce(n); s != nil {
		return b.reduceOn(s, s.combine.Stream)
	}
	return b.summed(n)
}

// CancelReduce gives up a combine if its sum is not launched: it releases the handle.
// Else it does nothing, and cancelled is false.
func (b *Buffer) CancelReduce(n ReduceTicket, stream uint64) (cancelled bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return false, err
	}
	if s := b.pendingReduce(n); s != nil {
		return true, b.release(s, stream)
	}
	return false, b.summed(n)
}

func (b *Buffer) reduce(s *slot) error {
	if !s.pending {
		return nil
	}
	s.pending = false
	err := b.launched(b.engine.Reduce(&s.combine))
	b.reduces.set(uint64(s.ticket), err == nil)
	return err
}

// Release launches, on the stream, that this rank is done with a handle. Between two
// phases of the handle the stream also waits until remote ranks have room for what the
// first phase has left. It waits for room for the release's own message, too, unless
// the handle was combined and phases of it came apart.
func (b *Buffer) Release(h Handle, stream uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.live(h)
	if err != nil {
		return err
	}
	return b.release(s, stream)
}

// LeaveToGraph is for a handle of a recorded dispatch, once the recording has ended:
// the graph takes the slot and releases it by itself. Nothing is launched.
func (b *Buffer) LeaveToGraph(h Handle) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, err := b.live(h)
	if err == nil {
		s.left = true
	}
	return err
}

func (b *Buffer) release(s *slot, stream uint64) error {
	c, err := b.endHandle(s, stream)
	if err != nil {
		return err
	}
	return b.launched(b.engine.Release(c))
}

// launched ends the buffer's part in the epoch when a launch has failed, because the
// steps of an operation cannot be done in part.
func (b *Buffer) launched(err error) error {
	if err != nil {
		b.Abandon(err)
	}
	b.ringRemote()
	return err
}
