// Package gpu is expert-parallel dispatch and combine on CUDA devices: it joins
// a rank's launches (core/device/cuda) with its group (core/transport), which
// says who is a member, who has ended, and where the others' memory is.
//
// What runs per operation is launches on the caller's stream; nothing waits on
// the host. One goroutine per buffer, the watcher, hears from the device whom
// it finds late, decides as core/ep does whom to take out of the group, and
// tells the device. docs/cuda.md has the whole.
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
package gpu
