package tcp

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/wire"
)

// Counters say what happened at the listening sockets and on connections, by
// reason. A connection that is counted as refused has changed nothing else.
type Counters struct {
	// Wire counts refused handshakes and messages by reason.
	Wire wire.Counters

	Accepted   atomic.Uint64 // connections taken from a listening socket
	Joined     atomic.Uint64 // of these: handed to an endpoint
	Crowded    atomic.Uint64 // closed because NumPending others came after
	Late       atomic.Uint64 // closed after HandshakeTimeout
	Ended      atomic.Uint64 // closed by the other side during the handshake
	Refused    atomic.Uint64 // handshake failed; Wire says why
	NotWanted  atomic.Uint64 // genuine, but for no endpoint that waits for it
	Violations atomic.Uint64 // connections with genuine messages that make no sense
	Broken     atomic.Uint64 // endpoints with a connection that ended by itself

	Pinned       atomic.Uint64 // calls that sent payload without a copy
	PinnedCopied atomic.Uint64 // notices that say that the kernel has copied all the same
	NotPinned    atomic.Uint64 // payloads copied because the kernel keeps no more in place
}
