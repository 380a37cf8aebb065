package gpu

import (
	"errors"
	"time"

	"github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport"
)

var errNotYet = errors.New("not yet")

// Buffer is one rank's end of a group on CUDA. All methods are safe for
// concurrent use; each takes a lock for as long as its launches take, and only
// New, Connect, Prepare, Install and Close wait for anybody.
type Buffer struct{}

// New allocates this rank's memory on the device and lays out for the others
// how to map it. It waits for nobody; Connect (with Config.Joining: Install)
// comes next. The buffer owns the domain from then on and closes it; the device
// stays the caller's and is closed after the buffer. On an error both are the
// caller's. All ranks of the domain must be near (Domain.Far nil, or without
// ranks).
func New(dom transport.Domain, dev *cuda.Device, cfg Config) (*Buffer, error) {
	return nil, errNotYet
}

// Connect maps the memory of all ranks that are present in the domain, and
// waits for those that have not come as far, until the deadline. All ranks
// call it, in any order but not one after the other on one goroutine's
// blocking path before all have called New. Idempotent.
func (b *Buffer) Connect(deadline time.Duration) error { return errNotYet }

// SizeHint is NumBytes for operations of a shape.
func SizeHint(s layout.Shape, numSlots int) (int64, error) { return 0, errNotYet }

// Params encodes what ranks must agree on and where this one stands, for the
// metadata of a meeting (at most 256 bytes).
func (c Config) Params(st ep.Standing) ([]byte, error) { return nil, errNotYet }

// CheckParams compares every rank's Params with those of rank self, and returns
// with what the epoch begins that they make together. nil: absent. A rank whose
// buffer is on the CPU is a mismatch.
func CheckParams(self int, all [][]byte) (next ep.Standing, err error) { return next, errNotYet }

// Dispatch launches a dispatch on the stream: its first phase, or both. Its
// slot is chosen by Dispatch: the one after the latest that no live handle
// holds; if all are held, that of the oldest handle, which becomes stale. A
// call that is captured keeps its slot in all replays.
//
// ErrInvalid: nothing has happened. Errors of the device come late: each call
// returns what has been reported until then (Err).
func (b *Buffer) Dispatch(a *DispatchArgs, res *Result, until Phase) error { return errNotYet }

// Receive launches the second phase of a dispatch, on its stream. It does
// nothing if that was launched.
func (b *Buffer) Receive(h Handle) error { return errNotYet }

// Combine launches a combine of a handle: the copy of outputs that are not in
// place (PhaseSent; X is not needed when the stream has passed that), and the
// sum. If Receive was not called it comes first. A handle can be combined
// again until the next call for another one, which releases it.
func (b *Buffer) Combine(h Handle, a *CombineArgs, until Phase) error { return errNotYet }

// Reduce launches the second phase of the handle's latest combine, on its
// stream. It does nothing if that was launched.
func (b *Buffer) Reduce(h Handle) error { return errNotYet }

// Release launches, on the stream, that this rank is done with a handle.
func (b *Buffer) Release(h Handle, stream uint64) error { return errNotYet }

// Err is what a call would return now because of what the device or the group
// have done: ErrFenced, ErrMismatch, ErrClosed, ...; nil if calls are possible.
func (b *Buffer) Err() error { return nil }

// Rank returns this rank's number.
func (b *Buffer) Rank() int { return 0 }

// NumRanks returns R.
func (b *Buffer) NumRanks() int { return 0 }

// NumSlots returns S.
func (b *Buffer) NumSlots() int { return 0 }

// Path says how a rank's memory is reached: "self", "process" (plain
// addresses), "fd" (memory imported by descriptor), "ipc" (an IPC handle), ""
// (absent, or not connected).
func (b *Buffer) Path(rank int) string { return "" }

// Members returns one bit per member of this rank's epoch; 0 after Close.
func (b *Buffer) Members() uint64 { return 0 }

// Membership is as that of ep.Buffer.
func (b *Buffer) Membership() (ranks uint64, epoch uint16, lost uint64) { return 0, 0, 0 }

// Prepare ends this rank's part in its epoch, as ep.Buffer's does, and waits
// (Config.QuietTimeout) until nothing of it runs on the device. Handles are
// stale. No graph that has recorded calls is launched until Install. It may be
// called again.
func (b *Buffer) Prepare() (ep.Standing, error) { return ep.Standing{}, errNotYet }

// Install begins an epoch, as ep.Buffer's does: commit, if not nil, puts the
// ranks that have met in the places of the old ones in the domain; then the
// memory of those that are new is mapped, until the deadline. Addresses of this
// rank's own memory stay, so graphs go on working.
func (b *Buffer) Install(epoch uint16, base uint64, commit func() error, deadline time.Duration) error {
	return errNotYet
}

// Close leaves the group, waits (Config.QuietTimeout) until the device has done
// what was launched, and frees everything. No graph that has recorded calls is
// launched after it. If the device is not done by then, the error says so, the
// memory stays allocated, and Close may be called again; else idempotent.
func (b *Buffer) Close() error { return nil }
