package shm

import (
	"fmt"

	"github.com/moewire/moewire/core/internal/sys"
)

// livenessKind is how the end of a peer's process is noticed.
type livenessKind uint8

const (
	// bySameProcess: the peer lives and dies with this rank.
	bySameProcess livenessKind = iota
	// byPeerPidfd: a pidfd that the kernel gave for the connection; right
	// across pid namespaces.
	byPeerPidfd
	// byPidfdOpen: a pidfd opened by the number in the credentials. That
	// the number still is the peer's is known because the peer's "ready"
	// comes later.
	byPidfdOpen
	// byConnection: the connection's end of file.
	byConnection
)

func (k livenessKind) String() string {
	switch k {
	case bySameProcess:
		return "same process"
	case byPeerPidfd:
		return "pidfd of the connection's peer"
	case byPidfdOpen:
		return "pidfd opened by process id"
	case byConnection:
		return "end of the connection"
	}
	return fmt.Sprintf("livenessKind(%d)", uint8(k))
}

// liveness is what this rank holds to notice a peer's death.
type liveness struct {
	kind  livenessKind
	pid   int // in this process's pid namespace; 0 when not visible
	pidfd *sys.FD
}

// bestLiveness is the best kind that findLiveness tries; tests raise it.
var bestLiveness = byPeerPidfd

// findLiveness takes the best way that the kernel has. That this process has no
// descriptor left says nothing of the kernel: it is an error, not a worse way.
func findLiveness(conn *sys.FD, cred sys.Credentials) (l liveness, err error) {
	l.pid = cred.PID
	if cred.PID == sys.Getpid() {
		return l, nil
	}
	if bestLiveness <= byPeerPidfd {
		if l.pidfd, err = sys.PeerPidfd(conn); err == nil {
			l.kind = byPeerPidfd
			return l, nil
		}
	}
	if bestLiveness <= byPidfdOpen && cred.PID > 0 {
		if l.pidfd, err = sys.OpenPidfd(cred.PID); err == nil {
			l.kind = byPidfdOpen
			return l, nil
		}
	}
	l.kind, l.pidfd = byConnection, nil
	if sys.IsShortage(err) {
		return l, err
	}
	return l, nil
}
