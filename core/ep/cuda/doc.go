// Package cuda is expert-parallel dispatch and combine on CUDA devices. It joins a
// rank's launches (core/device/cuda) with its group (core/group), which says which
// ranks are members, which have ended, and where the others' memory is.
//
// An operation is launches on the caller's stream; nothing waits on the host. One
// goroutine per buffer, the watcher, learns from the device which ranks are late. It
// decides as core/ep/cpu does which rank to take out of the group, and tells the device.
// docs/cuda.md describes the whole.
//
//	New ─ memory of this rank, its memory descriptor laid out for the others
//	 │
//	Connect ─ the others' memory mapped; the epoch of the domain begins
//	 │
//	Dispatch, Receive, Combine, Reduce, Release ─ launches
//	 │
//	Prepare ─(a rendezvous)─ Install ─ another epoch; addresses stay
//	 │
//	Close
//
// Errors are those of core/ep: ErrInvalid (nothing has happened), ErrStaleHandle,
// ErrNoHandle, ErrFenced, ErrUpdating, ErrMismatch, ErrNotCombined, ErrClosed.
package cuda
