package cuda

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// Host memory: the control block, report, and room for copies.
const (
	reportOff  = uintptr(unsafe.Sizeof(hostControl{}))
	stagingOff = reportOff + uintptr(unsafe.Sizeof(report{}))
	hostBytes  = uint64(stagingOff) + 8*stagingWords

	stagingWords = 8
)

func bytesAt(addr uintptr, n uint64) []byte { return unsafe.Slice(dl.At[byte](addr), n) }

func (e *Engine) hostControl() *hostControl { return dl.At[hostControl](e.host.host) }

func (e *Engine) report() *report { return dl.At[report](e.host.host + reportOff) }

// SetMembers sets the member word, as core/group/membership has it. Kernels that wait see it within microseconds.
func (e *Engine) SetMembers(word uint64) { atomic.StoreUint64(&e.hostControl().Members, word) }

// SetQuiesced says which ranks are known to write nothing more.
func (e *Engine) SetQuiesced(ranks rankset.Set) {
	atomic.StoreUint64(&e.hostControl().Quiesced, ranks.Word())
}

// Join says which epoch this rank has joined; SetMembers comes next. Nothing of this
// engine runs on the device. The device keeps it in its own memory, where kernels
// find it without a way over the bus, recorded ones too.
func (e *Engine) Join(epoch uint64) error {
	const at = unsafe.Offsetof(state{}.Epoch)
	if err := e.copyIn(e.private.Address()+uint64(at), []uint64{epoch, allRanks.Word()}); err != nil {
		return err
	}
	e.epoch = epoch
	return nil
}

// allRanks is what the device knows of the members before it has looked.
var allRanks = rankset.Upto(rankset.MaxRanks)

// TakeTimedOut returns the ranks for which waits are past their deadline, and
// forgets them. One goroutine at a time calls it and StillTimedOut.
func (e *Engine) TakeTimedOut() (ranks rankset.Set) {
	for r := range e.cfg.NumRanks {
		if wait := atomic.SwapUint64(&e.report().TimedOut[r], 0); wait != 0 {
			e.timedOut[r] = wait
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// StillTimedOut returns those of the ranks for which the very wait goes on that
// TakeTimedOut has told of: the next one for the same rank has a deadline of its own.
func (e *Engine) StillTimedOut(ranks rankset.Set) (still rankset.Set) {
	for r := range ranks.All() {
		if e.Wait(r) == e.timedOut[r] {
			still = still.With(r)
		}
	}
	return still
}

// Waits returns the ranks that something on the device waits for now, leaving
// out waits of a few microseconds.
func (e *Engine) Waits() (ranks rankset.Set) {
	for r := range e.cfg.NumRanks {
		if e.Wait(r) != 0 {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

// Wait names what the device waits for a rank with now: each wait has another
// name. 0: it does not.
func (e *Engine) Wait(rank int) uint64 { return atomic.LoadUint64(&e.report().Waits[rank]) }

// Ops is how many operations the device has begun.
func (e *Engine) Ops() uint64 { return atomic.LoadUint64(&e.report().Ops) }

// FailureKind says what ended a buffer on the device.
type FailureKind uint64

// The kinds, and what Failure.Detail has.
const (
	FailedExpert   FailureKind = protocol.ErrorExpert   // topk_idx: position, value, 0, K
	FailedMismatch FailureKind = protocol.ErrorMismatch // rank, which parameter, mine, theirs
	FailedCapacity FailureKind = protocol.ErrorCapacity // rank, what its counter holds
	FailedFenced   FailureKind = protocol.ErrorFenced
	FailedNoHost   FailureKind = protocol.ErrorNoHost   // the rank that was waited for
	FailedReleased FailureKind = protocol.ErrorReleased // the rank that has let go
	FailedStale    FailureKind = protocol.ErrorStale    // slot
	FailedProxy    FailureKind = protocol.ErrorProxy    // why the host takes no more descriptors
	FailedMessage  FailureKind = protocol.ErrorMessage  // rank, bytes of a message that holds no row, or not the counts
	FailedNoRemote FailureKind = protocol.ErrorNoRemote // remote ranks, one bit each, for which the call has no launches
	FailedWeights  FailureKind = protocol.ErrorWeights  // the same of topk_weights with pre_reduce, by their bits
	FailedRouting  FailureKind = protocol.ErrorRouting  // topk_idx of a combine: position, value, that of the dispatch, K
	FailedWild     FailureKind = protocol.ErrorWild     // a word of this rank's own memory: which, where, value, the largest one allowed
)

// Failure is what the device reports once.
type Failure struct {
	Kind   FailureKind // 0: none
	Detail [4]uint64
}

// paramNames are those of docs/protocol.md.
var paramNames = [protocol.NumParams]string{"operation", "num_max_tokens_per_rank", "hidden", "num_experts", "form",
	"num_topk", "num_tokens", "extra_row_bytes"}

// Error says it in words.
func (f Failure) Error() string {
	d := f.Detail
	switch f.Kind {
	case FailedExpert:
		return fmt.Sprintf("topk_idx%s is %d", f.selection(), int64(d[1]))
	case FailedMismatch:
		name, here, there := mismatch(d)
		return fmt.Sprintf("%s: %s here, %s on rank %d", name, here, there, d[0])
	case FailedCapacity:
		return fmt.Sprintf("rank %d has no room for the rows: its counter holds %d", d[0], d[1])
	case FailedNoHost:
		return fmt.Sprintf("nothing was decided about a wait for rank %d", d[0])
	case FailedReleased:
		return fmt.Sprintf("rank %d has released the operation", d[0])
	case FailedProxy:
		return fmt.Sprintf("the host takes no more descriptors: reason %d", d[0])
	case FailedMessage:
		return fmt.Sprintf("a message of %d bytes to rank %d has no room for a row, or for the counts", d[1], d[0])
	case FailedNoRemote:
		return fmt.Sprintf("the graph was recorded when no rank was on another host, now %d of them are: record it again", rankset.FromWord(d[0]).Len())
	case FailedRouting:
		allowed := "allowed: that, or -1"
		if int64(d[1]) == -1 {
			allowed = "with pre_reduce they are the same"
		}
		return fmt.Sprintf("topk_idx%s of a combine is %d, the dispatch had %d (%s)", f.selection(), int64(d[1]), int64(d[2]), allowed)
	case FailedWeights:
		return fmt.Sprintf("topk_weights%s of a combine is %v, the dispatch had %v (with pre_reduce they are the same)",
			f.selection(), math.Float32frombits(uint32(d[1])), math.Float32frombits(uint32(d[2])))
	case FailedWild:
		return ownWild(d)
	case FailedStale:
		return fmt.Sprintf("slot %d holds no operation that can be combined", d[0])
	}
	return fmt.Sprintf("failure %d of the device", f.Kind)
}

// selection is where one stands, as the caller counts: [token, k].
func (f Failure) selection() string {
	k := max(f.Detail[3], 1)
	return fmt.Sprintf("[%d, %d]", f.Detail[0]/k, f.Detail[0]%k)
}

// mismatch names the parameter that ranks disagree about, and its values.
func mismatch(d [4]uint64) (name, here, there string) {
	switch {
	case d[1] == protocol.ParamFlags:
		return formDiffers(d[2], d[3])
	case d[1] < uint64(len(paramNames)):
		name = paramNames[d[1]]
	default:
		name = "parameter"
	}
	return name, fmt.Sprint(d[2]), fmt.Sprint(d[3])
}

// Failure is the first error of the device.
func (e *Engine) Failure() Failure {
	r := e.report()
	return Failure{Kind: FailureKind(atomic.LoadUint64(&r.Error)), Detail: r.Detail}
}

// Restart forgets all operations, what was counted of them, and errors, and makes base the number of the
// next operation. Nothing of this engine runs on the device, and no other rank
// reaches for its memory; addresses stay, and so does the epoch.
func (e *Engine) Restart(base uint64) error {
	if err := e.forget(base); err != nil {
		return err
	}
	return e.Join(e.epoch)
}

func (e *Engine) forget(base uint64) error {
	*dl.At[uint64](e.host.host + stagingOff) = base
	return e.d.do(func() error {
		lib, private := e.d.lib, libcuda.DevicePtr(e.private.Address())
		bases := libcuda.DevicePtr(uint64(e.at.bases))
		err := lib.MemsetAsync(private, 0, uint64(bases), e.d.own)
		if err == nil {
			err = lib.MemsetAsync(private+libcuda.DevicePtr(e.at.slots), 0, uint64(e.at.bytes-e.at.slots), e.d.own)
		}
		if err == nil { // the number is the first word
			err = lib.CopyToDeviceAsync(private, e.host.host+stagingOff, 8, e.d.own)
		}
		err = errors.Join(err, e.d.finish())
		if err == nil {
			e.forgetReport()
			e.forgetCounters()
		}
		return err
	})
}

func (e *Engine) forgetReport() {
	r := e.report()
	for i := range r.TimedOut {
		atomic.StoreUint64(&r.TimedOut[i], 0)
		atomic.StoreUint64(&r.Waits[i], 0)
		atomic.StoreUint64(&r.Wild[i], 0)
	}
	atomic.StoreUint64(&r.Error, 0)
}
