package shm

import (
	"errors"
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
	kind    livenessKind
	pid     int      // in this process's pid namespace; 0 when not visible
	process *process // of the kinds that have a pidfd
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
	l.process, err = peerProcesses.acquire(cred.PID, func() (*sys.FD, livenessKind, error) { return openPidfd(conn, cred.PID) })
	switch {
	case err == nil:
		l.kind = l.process.kind
		return l, nil
	case sys.IsShortage(err):
		return l, err
	}
	l.kind = byConnection
	return l, nil
}

var errOldKernel = errors.New("this kernel has no pidfds")

// openPidfd is called with the table's lock held; nothing here waits.
func openPidfd(conn *sys.FD, pid int) (fd *sys.FD, kind livenessKind, err error) {
	err = errOldKernel
	if bestLiveness <= byPeerPidfd {
		if fd, err = sys.PeerPidfd(conn); err == nil {
			return fd, byPeerPidfd, nil
		}
	}
	if bestLiveness <= byPidfdOpen && pid > 0 {
		if fd, err = sys.OpenPidfd(pid); err == nil {
			return fd, byPidfdOpen, nil
		}
	}
	return nil, byConnection, err
}
