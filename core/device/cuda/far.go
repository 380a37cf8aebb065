package cuda

import (
	"errors"
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// The mirrors of kernels/fifo.cuh, far.cuh and far_message.cuh.

type queue struct {
	Words address `c:"words"`
	Next  address `c:"next"`
	Num   uint64  `c:"num"`
}

// farRank is what the device knows of one rank.
type farRank struct {
	Sent     uint64  `c:"sent"`
	Released uint64  `c:"released"`
	To       address `c:"to"`
	From     address `c:"from"`
}

type farCommon struct {
	Queue queue   `c:"fifo"`
	Mail  address `c:"mail"`
	Far   address `c:"far"`

	// MessageBytes is where that is, as Far is: recorded graphs outlive a meeting.
	MessageBytes address `c:"message_bytes"`
}

type farSendArgs struct {
	Common     common    `c:"c"`
	Far        farCommon `c:"far"`
	X          address   `c:"x"`
	Index      address   `c:"index"`
	Tokens     address   `c:"tokens"`
	ListTokens int64     `c:"list_tokens"`

	Weights address                   `c:"weights"`
	Extra   [layout.NumExtras]address `c:"extra"`
}

type farOrderArgs struct {
	Plan planArgs  `c:"plan"`
	Far  farCommon `c:"far"`
}

type farTakeArgs struct {
	Common common    `c:"c"`
	Far    farCommon `c:"far"`
	Where  address   `c:"where"`
}

// Bytes of a message: how it begins, and what aligning its parts may take.
const (
	farHeadBytes  = 128
	farPlaceBytes = 8
	farSlackBytes = 8*16 + 64
)

// Mailbox says how kernels reach ranks by messages: where the ends of a proxy
// (core/transport/proxy) and of its links lie. Addresses are the device's. All
// of it stays there until the engine is closed or has another one.
type Mailbox struct {
	Ranks uint64 // one bit per far rank; this one is none
	// Words is the queue of descriptors and Length its length; Next is what
	// proxy.Start has returned.
	Words        uint64
	Length       int
	Next         uint64
	Mail         uint64
	MessageBytes int64 // of every loan: the proxy's LoanBytes, at most what links take
	// Rings are where links put messages together that are sent, and where
	// messages come, by rank.
	Send, Receive [MaxRanks]uint64
}

// farSide is what an engine has for far ranks.
type farSide struct {
	ranks        uint64
	messageBytes int64
	common       farCommon
	private      *Memory // farRank by rank, the queue's next number, lists of tokens
	mirrors      [MaxRanks]*Memory
	order        farOrderArgs
	send         farSendArgs
	take         farTakeArgs
}

// Where things are in farSide.private.
const (
	farNextOff    = int64(MaxRanks * unsafe.Sizeof(farRank{}))
	farMessageOff = farNextOff + 64
	farTokensOff  = farNextOff + 128
)

// SetMailbox says how far ranks are reached from the next launch on, which
// begins a generation of the queue. Nothing of this engine runs on the device.
// Restart comes before it, not after it. Each far rank gets a mirror of as many
// bytes as a rank's shared memory: its outputs come there.
func (e *Engine) SetMailbox(m Mailbox) error {
	if m.Ranks>>e.cfg.NumRanks != 0 || m.Ranks>>e.cfg.Rank&1 == 1 {
		return fmt.Errorf("far ranks are %#x, this one is %d of %d", m.Ranks, e.cfg.Rank, e.cfg.NumRanks)
	}
	f := e.far
	if f == nil {
		f = &farSide{}
		e.far = f
	}
	if err := e.allocateFar(f, m.Ranks); err != nil {
		return err
	}
	f.ranks, f.messageBytes = m.Ranks, m.MessageBytes
	at := f.private.Address()
	f.common = farCommon{
		Queue: queue{Words: m.Words, Next: at + uint64(farNextOff), Num: uint64(m.Length)},
		Mail:  m.Mail, Far: at, MessageBytes: at + uint64(farMessageOff),
	}
	return e.tellFar(f, &m)
}

func (e *Engine) allocateFar(f *farSide, ranks uint64) (err error) {
	if f.private == nil {
		lists := int64(e.cfg.NumRanks) * int64(e.cfg.MaxSelections) * 4
		if f.private, err = e.d.Alloc(uint64(farTokensOff + lists)); err != nil {
			return err
		}
	}
	for rest := ranks; rest != 0; rest &= rest - 1 {
		r := bits.TrailingZeros64(rest)
		if f.mirrors[r] == nil {
			if f.mirrors[r], err = e.d.Alloc(e.cfg.SharedBytes()); err != nil {
				return err
			}
		}
		if err := e.SetPeer(r, f.mirrors[r].Address()); err != nil {
			return err
		}
	}
	return nil
}

// tellFar writes what the device reads of it.
func (e *Engine) tellFar(f *farSide, m *Mailbox) error {
	for r := range e.cfg.NumRanks {
		known := farRank{To: m.Send[r], From: m.Receive[r]}
		at := f.private.Address() + uint64(r)*uint64(unsafe.Sizeof(known))
		if err := e.copyIn(at, unsafe.Slice((*uint64)(unsafe.Pointer(&known)), 4)); err != nil {
			return err
		}
	}
	next, longest, ranks := []uint64{m.Next}, []uint64{uint64(m.MessageBytes)}, []uint64{m.Ranks}
	return errors.Join(e.copyIn(f.common.Queue.Next, next), e.copyIn(f.common.MessageBytes, longest),
		e.copyIn(e.private.Address()+uint64(unsafe.Offsetof(state{}.Far)), ranks))
}

// copyIn writes words to the device, at most as many as there is room to copy
// from. It waits for that.
func (e *Engine) copyIn(to uint64, words []uint64) error {
	copy(unsafe.Slice(dl.At[uint64](e.host.host+stagingOff), stagingWords), words)
	return e.d.do(func() error {
		err := e.d.lib.CopyToDeviceAsync(libcuda.DevicePtr(to), e.host.host+stagingOff, uint64(8*len(words)), e.d.own)
		return errors.Join(err, e.d.finish())
	})
}

func (f *farSide) close() error {
	var all []error
	if f.private != nil {
		all = append(all, f.private.Close())
	}
	for _, m := range f.mirrors {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	return errors.Join(all...)
}

// isFar reports whether there is anybody to send messages to.
func (e *Engine) isFar() bool { return e.far != nil && e.far.ranks != 0 }

// CheckFar says why an operation is not possible with far ranks; nil without any.
func (e *Engine) CheckFar(s *layout.Slab, topK int) error {
	if !e.isFar() {
		return nil
	}
	if need := leastMessage(s, topK); need > e.far.messageBytes {
		return fmt.Errorf("a row of hidden %d with num_experts %d and %d bytes of columns needs a message of %d bytes to another host, it has at most %d",
			s.Hidden, s.NumExperts, s.ColumnBytes(), need, e.far.messageBytes)
	}
	return nil
}

// leastMessage is how many bytes a message with one row, or its output, needs.
func leastMessage(s *layout.Slab, topK int) int64 {
	rows := farHeadBytes + (4*s.LocalExperts+15)&^15 + farSlackBytes +
		s.RowBytes + s.Groups()*4 + s.ColumnBytes() + 4
	if !s.Flat {
		rows += int64(topK) * farPlaceBytes
	}
	return max(rows, farHeadBytes+s.OutputBytes())
}

// orderFar gives rows their places, in an operation that puts them in order and was
// planned.
func (e *Engine) orderFar(c *Dispatch) error {
	if !e.isFar() || c.Flags&flagOrdered == 0 {
		return nil
	}
	f := e.far
	f.order = farOrderArgs{Plan: e.args.plan, Far: f.common}
	f.order.Plan.Common.NumBlocks = int32(e.cfg.NumRanks)
	return launch(e, c.Stream, kernelFarOrder, int32(e.cfg.NumRanks), e.threads.row, &f.order)
}

// sendFar sends rows that were placed to far ranks.
func (e *Engine) sendFar(common *common, c *Dispatch) error {
	if !e.isFar() {
		return nil
	}
	f := e.far
	f.send = farSendArgs{
		Common: *common, Far: f.common, X: c.X, Index: e.of(common.Slot, e.at.index),
		Tokens: f.private.Address() + uint64(farTokensOff), ListTokens: int64(e.cfg.MaxSelections),
		Weights: c.Weights, Extra: c.Extra,
	}
	f.send.Common.Tally = 0 // nobody would book its waits, but the next launch as its own
	return launch(e, c.Stream, kernelFarSend, common.NumRanks, e.threads.row, &f.send)
}

// sendFarOutputs sends far ranks the outputs of their rows.
func (e *Engine) sendFarOutputs(common common, stream uint64) error {
	common.Tally = 0 // as in sendFar
	return e.serveFar(&common, stream, kernelFarOutputs)
}

// serveFar launches one of the kernels that take messages, or send outputs.
func (e *Engine) serveFar(common *common, stream uint64, kernel int) error {
	if !e.isFar() {
		return nil
	}
	e.far.take = farTakeArgs{Common: *common, Far: e.far.common, Where: e.of(common.Slot, e.at.where)}
	return launch(e, stream, kernel, common.NumRanks, e.threads.row, &e.far.take)
}
