package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// Mailbox says how kernels reach ranks by messages: where the ends of a proxy
// (core/group/proxy) and of its links lie. Addresses are the device's. All
// of it stays there until the engine is closed or has another one.
type Mailbox struct {
	Ranks rankset.Set // the remote ranks; this one is none
	// Words is the queue of descriptors and Length its length; Next is what
	// proxy.Start has returned.
	Words        uint64
	Length       int
	Next         uint64
	Mail         uint64
	MessageBytes int64 // of every lease: the proxy's LeaseBytes, at most what links take
	// Rings are where links put messages together that are sent, and where
	// messages come, by rank.
	Send, Receive [rankset.MaxRanks]uint64
}

// remoteSide is what an engine has for remote ranks.
type remoteSide struct {
	ranks        rankset.Set
	messageBytes int64
	common       remoteCommon
	private      *Memory // remoteRank by rank, the queue's next number, lists of tokens
	shadows      [rankset.MaxRanks]*Memory
	order        remoteOrderArgs
	send         remoteSendArgs
	take         remoteTakeArgs
}

// Where things are in remoteSide.private.
const (
	remoteNextOff    = int64(rankset.MaxRanks * unsafe.Sizeof(remoteRank{}))
	remoteMessageOff = remoteNextOff + 64
	remoteTokensOff  = remoteNextOff + 128
)

// SetMailbox says how remote ranks are reached from the next launch on, which
// begins a generation of the queue. Nothing of this engine runs on the device.
// Restart comes before it, not after it. Each remote rank gets a shadow of as many
// bytes as a rank's shared memory: its outputs come there.
func (e *Engine) SetMailbox(m Mailbox) error {
	if !m.Ranks.Minus(rankset.Upto(e.cfg.NumRanks)).Empty() || m.Ranks.Has(e.cfg.Rank) {
		return fmt.Errorf("remote ranks are %v, this one is %d of %d", m.Ranks, e.cfg.Rank, e.cfg.NumRanks)
	}
	f := e.remote
	if f == nil {
		f = &remoteSide{}
		e.remote = f
	}
	if err := e.allocateRemote(f, m.Ranks); err != nil {
		return err
	}
	f.ranks, f.messageBytes = m.Ranks, m.MessageBytes
	at := f.private.Address()
	f.common = remoteCommon{
		Queue: queue{Words: m.Words, Next: at + uint64(remoteNextOff), Num: uint64(m.Length)},
		Mail:  m.Mail, Ranks: at, MessageBytes: at + uint64(remoteMessageOff),
	}
	return e.writeRemoteArgs(f, &m)
}

func (e *Engine) allocateRemote(f *remoteSide, ranks rankset.Set) (err error) {
	if f.private == nil {
		lists := int64(e.cfg.NumRanks) * int64(e.cfg.MaxSelections) * 4
		if f.private, err = e.d.Alloc(uint64(remoteTokensOff + lists)); err != nil {
			return err
		}
	}
	for r := range ranks.All() {
		if f.shadows[r] == nil {
			if f.shadows[r], err = e.d.Alloc(e.cfg.SharedBytes()); err != nil {
				return err
			}
		}
		if err := e.SetPeer(r, f.shadows[r].Address()); err != nil {
			return err
		}
	}
	return nil
}

// writeRemoteArgs writes what the device reads of it.
func (e *Engine) writeRemoteArgs(f *remoteSide, m *Mailbox) error {
	for r := range e.cfg.NumRanks {
		known := remoteRank{To: m.Send[r], From: m.Receive[r]}
		at := f.private.Address() + uint64(r)*uint64(unsafe.Sizeof(known))
		if err := e.copyIn(at, unsafe.Slice((*uint64)(unsafe.Pointer(&known)), 4)); err != nil {
			return err
		}
	}
	next, longest, ranks := []uint64{m.Next}, []uint64{uint64(m.MessageBytes)}, []uint64{m.Ranks.Word()}
	return errors.Join(e.copyIn(f.common.Queue.Next, next), e.copyIn(f.common.MessageBytes, longest),
		e.copyIn(e.private.Address()+uint64(unsafe.Offsetof(state{}.Remote)), ranks))
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

func (f *remoteSide) close() error {
	var all []error
	if f.private != nil {
		all = append(all, f.private.Close())
	}
	for _, m := range f.shadows {
		if m != nil {
			all = append(all, m.Close())
		}
	}
	return errors.Join(all...)
}

// isRemote reports whether there are ranks to send messages to.
func (e *Engine) isRemote() bool { return e.remote != nil && !e.remote.ranks.Empty() }

// CheckRemote says why an operation is not possible with remote ranks; nil without any.
func (e *Engine) CheckRemote(s *layout.Slab, topK int) error {
	if !e.isRemote() {
		return nil
	}
	if need := leastMessage(s, topK); need > e.remote.messageBytes {
		return fmt.Errorf("a row of hidden %d with num_experts %d and %d bytes of columns needs a message of %d bytes to another host, it has at most %d",
			s.Hidden, s.NumExperts, s.ColumnBytes(), need, e.remote.messageBytes)
	}
	return nil
}

// Bytes of a message: how it begins, and of one place.
const (
	remoteHeadBytes  = int64(unsafe.Sizeof(remoteHead{}))
	remotePlaceBytes = int64(unsafe.Sizeof(remotePlace{}))
)

// leastMessage is how many bytes a message with one row, or its output, needs.
func leastMessage(s *layout.Slab, topK int) int64 {
	rows := remoteHeadBytes + (4*s.LocalExperts+15)&^15 + protocol.RemoteSlack +
		s.RowBytes + s.Groups()*4 + s.ColumnBytes() + 4
	if !s.Flat {
		rows += int64(topK) * remotePlaceBytes
	}
	return max(rows, remoteHeadBytes+s.OutputBytes())
}

// orderRemote gives rows their places, in an operation that puts them in order and was
// planned.
func (e *Engine) orderRemote(c *Dispatch) error {
	if !e.isRemote() || c.Flags&protocol.FlagOrdered == 0 {
		return nil
	}
	f := e.remote
	f.order = remoteOrderArgs{Plan: e.args.plan, Remote: f.common}
	f.order.Plan.Common.NumBlocks = int32(e.cfg.NumRanks)
	return launch(e, c.Stream, kernelRemoteOrder, int32(e.cfg.NumRanks), e.threads.row, &f.order)
}

// sendRemote sends rows that were placed to remote ranks.
func (e *Engine) sendRemote(common *common, c *Dispatch) error {
	if !e.isRemote() {
		return nil
	}
	f := e.remote
	f.send = remoteSendArgs{
		Common: *common, Remote: f.common, X: c.X, Index: e.of(common.Slot, e.at.index),
		Tokens: f.private.Address() + uint64(remoteTokensOff), ListTokens: int64(e.cfg.MaxSelections),
		Weights: c.Weights, Extra: c.Extra,
	}
	f.send.Common.Counters = 0 // else the next launch would book its waits as its own
	return launch(e, c.Stream, kernelRemoteSend, common.NumRanks, e.threads.row, &f.send)
}

// sendRemoteOutputs sends remote ranks the outputs of their rows.
func (e *Engine) sendRemoteOutputs(common common, stream uint64) error {
	common.Counters = 0 // as in sendRemote
	return e.serveRemote(&common, stream, kernelRemoteOutputs)
}

// serveRemote launches one of the kernels that take messages, or send outputs.
func (e *Engine) serveRemote(common *common, stream uint64, kernel int) error {
	if !e.isRemote() {
		return nil
	}
	e.remote.take = remoteTakeArgs{Common: *common, Remote: e.remote.common, Where: e.of(common.Slot, e.at.where)}
	return launch(e, stream, kernel, common.NumRanks, e.threads.row, &e.remote.take)
}
