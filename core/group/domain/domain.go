// Package domain says what the engines of core/ep need from whatever their ranks share.
//
// A Domain is a set of ranks that can map one another's memory (shared memory between
// processes, the Go heap inside one process). Everything that two ranks share is a word,
// reached by Segment.Word and only by atomic operations, or bytes that such a word hands
// over.
package domain

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// Sentinels that callers must tell apart.
var (
	// ErrExited means that the peer's process is known to have ended.
	ErrExited = errors.New("process has ended")
	// ErrUnwatched means that this process knows the other one no more: its rank
	// was replaced some time ago, or the domain closed.
	ErrUnwatched = errors.New("process is not watched any more")
	// ErrCorrupt means that a peer's memory says what cannot be: of a slab that it
	// has not, or that lies elsewhere. The peer is at fault, not this process.
	ErrCorrupt = errors.New("corrupt memory of a peer")
	// ErrMetadata means that a peer's metadata bytes are not usable.
	ErrMetadata = errors.New("bad metadata")
)

// Segment is one mapped range of memory. All methods are safe for concurrent
// use; none allocates.
type Segment interface {
	// Word returns the 64-bit word at byte offset off, which must be a
	// multiple of 8 inside the segment. Go's atomics on it are sequentially
	// consistent, which is what the slot protocol asks for.
	Word(off int64) *atomic.Uint64
	// Bytes returns the n bytes at offset off. The slice aliases the segment
	// and is valid while the caller holds a reference (Retain).
	Bytes(off, n int64) []byte
	// SizeBytes is the length of the segment.
	SizeBytes() int64
	// Prefault makes the pages of [off, off+n) present and writable in this
	// mapping, so that later stores do not fault. Best effort: failure only
	// costs time later.
	Prefault(off, n int64)
	Retained
}

// Retained is memory that stays in place as long as a caller retains it.
type Retained interface {
	// Retain adds a reference; the memory stays until the last Release.
	Retain()
	// Release drops a reference taken by Retain.
	Release()
}

// Process is one incarnation of a rank: the process and buffer that came to a
// rendezvous under its number. It stays valid, and watched, after another one
// has taken the number over. All methods are safe for concurrent use; none
// allocates or makes a system call.
type Process interface {
	// Lost returns nil while the process may be alive, and an error wrapping
	// ErrExited once it is known to have ended: none of its threads will store
	// another byte.
	Lost() error
	// Dying reports, with one load, that the kernel has begun to end the
	// process (or that Lost is not nil). It is the earliest sign, and no
	// proof: a thread of it may still run for a moment.
	Dying() bool
	// PID is the process id as seen from this process; 0 if it cannot be.
	PID() int
}

// Endable is a Process that this one can end, because both are on one host.
type Endable interface {
	Process
	// End kills the process, also a stopped one; Lost tells when it has ended. An
	// error says why it cannot be: it is this process itself, the kernel has no
	// pidfds, or forbids it, or ErrUnwatched. Not before the process has come to a
	// rendezvous, and without effect once it has ended.
	End() error
}

// MemberWord is the group's membership word. In memory that all ranks map it is
// an atomic; across hosts a change that takes others out has to be agreed on.
type MemberWord interface {
	Load() uint64
	// CompareAndSwap reports whether this call changed the word. False may also mean: not
	// yet; a caller that wants the change looks at the word again.
	CompareAndSwap(old, next uint64) bool
}

// Domain is one rank's view of its group.
type Domain interface {
	// Rank and NumRanks place this rank in the group.
	Rank() int
	NumRanks() int
	// Members is the group's membership word.
	Members() MemberWord
	// Present are the ranks that came to the last rendezvous, this one
	// included. Control and Process return nil for the others.
	Present() rankset.Set
	// Control returns the control segment of a rank (its own or a peer's).
	Control(rank int) Segment
	// Process returns the incarnation behind a rank's number.
	Process(rank int) Process
	// AddSlab makes a fresh zeroed slab of this rank and returns its id.
	// Peers can reach it by that id as soon as AddSlab has returned.
	AddSlab(sizeBytes int64) (id int, slab Segment, err error)
	// Slab returns a rank's slab by id, mapping it when it is first seen.
	// After that first call it allocates nothing and makes no system call.
	Slab(rank, id int) (Segment, error)
	// Wake ends the sleep of a rank, if it sleeps. Call it after storing a
	// word that the rank may be waiting for.
	Wake(rank int)
	// PrepareSleep announces that this rank is about to sleep and returns a
	// ticket. The caller checks its condition once more, then calls Sleep
	// with the ticket, or CancelSleep if the condition has come true.
	PrepareSleep() uint32
	CancelSleep()
	// Sleep blocks until another rank or goroutine calls Wake for this rank after the
	// ticket was drawn, or for at most d (d > 0). It may return early.
	Sleep(ticket uint32, d time.Duration)
	// Yield gives the processor to another runnable thread, if there is one.
	Yield()
	// Remote reaches the ranks with memory that cannot be mapped; nil when there are
	// none. For these, Control is a page of this process, in which the receiver of their
	// messages keeps their words, and Slab is an error.
	Remote() Remote
	// Close ends this rank's use of the domain. Idempotent. Retained segments stay
	// mapped.
	Close() error
}
