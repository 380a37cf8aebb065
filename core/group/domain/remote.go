package domain

import (
	"time"

	"github.com/moewire/moewire/core/group/rankset"
)

// Remote reaches the ranks of a group when this one cannot map their memory: by messages.
// Messages from one rank to another arrive once each, whole and in the order in which
// they were posted; the layer that carries them may reorder, so the implementation
// counts. All methods are for one goroutine at a time (core/ep/cpu calls them under its
// lock). None blocks; none but Memory allocates in steady state. Whenever a message
// arrives or room comes free, the rank's own bell rings (Domain.Wake of itself).
type Remote interface {
	// Ranks are the ranks that are reached so. They change at rendezvous
	// only.
	Ranks() rankset.Set
	// MaxMessageBytes is the length of the longest message.
	MaxMessageBytes() int64
	// Reserve leases memory for a message of n bytes to a rank; its contents
	// are undefined. ErrWouldBlock: the rank has no room for it now. An error
	// that wraps ErrExited: it is lost. A second Reserve for the rank before Post
	// replaces the first; messages to several ranks may be filled side by side.
	Reserve(rank int, n int64) ([]byte, error)
	// Post sends the first n bytes of what was reserved last for the rank.
	Post(rank int, n int64) error
	// Next returns the oldest message from a rank that was not released, nil
	// if there is none. It stays as it is until Release. Messages that had
	// arrived before a rank was lost are still there.
	Next(rank int) []byte
	// Release gives the memory of that message back to its sender.
	Release(rank int)
	// WordAge is how old the copies of a remote rank's words may be that its Control
	// shows now: a caller that compares two looks at them lets several of it pass.
	WordAge() time.Duration
	// Untaken are the ranks that have not released all that was posted to it, and
	// may still do so. A caller that ends its use of the domain before that may lose
	// messages.
	Untaken() (ranks rankset.Set)
	// Memory returns zeroed memory of this process's own, which becomes
	// resident as it is touched. The caller releases it (Segment.Release).
	Memory(sizeBytes int64) (Segment, error)
}

// RemotePlaces is a Remote that says where messages lie, by offsets in the memory in
// which each rank's messages are put together and arrive. It is for a caller that does
// not read them itself, because a device does. Alignment is that of a cache line. The
// memory may be a device's own: then Reserve is an error that wraps ErrNotSupported, and
// Next is nil.
type RemotePlaces interface {
	Remote
	// ReserveAt is Reserve. The message begins at off.
	ReserveAt(rank int, n int64) (off int64, err error)
	// NextAt is Next: the oldest message has n bytes at off; n is 0 if there is
	// none.
	NextAt(rank int) (off, n int64)
}

// RemoteRings is a RemotePlaces that says what the memory is which places are in: as
// long as the rank is one of Ranks. The segments stay its own.
type RemoteRings interface {
	RemotePlaces
	// Rings are where messages to a rank are put together, and where those of it
	// arrive; nils for other ranks.
	Rings(rank int) (send, receive Segment)
}
