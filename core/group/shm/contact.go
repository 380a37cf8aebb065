package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
)

// contact is what this rank keeps of a rendezvous with a peer, to notice the
// end of the peer's process.
type contact struct {
	rank int
	liveness
	conn  *sys.FD // closed after the rendezvous unless keep
	keep  bool    // conn is this side's liveness or the other's
	left  bool    // the peer has sent a shutdown notice
	token int32   // of the connection at the process's watcher; 0 while not watched
	lost  atomic.Pointer[error]

	endMu sync.Mutex // held while the peer's process is signalled or released
	ended bool
}

// byEnd reports whether the end of the connection stands for the process's. It does so for
// this domain alone: other domains have connections of their own, and the peer closes each
// with its domain.
func (c *contact) byEnd() bool { return c.kind == byConnection && !c.left }

// isWatched is false when nothing can be learned of the peer's process.
func (c *contact) isWatched() bool { return c.process != nil || c.byEnd() }

// watch has the end of the peer's process reported. ring runs after the peer was found
// lost.
func (c *contact) watch(ring func()) (err error) {
	report := func(failure error) { c.report(failure, ring) }
	switch {
	case c.process != nil:
		err = peerProcesses.follow(c.process, c, report)
	case c.byEnd():
		c.token, err = processWatcher.add(c.conn, report)
	}
	if err != nil {
		return fmt.Errorf("rank %d: watching its process: %w", c.rank, err)
	}
	return nil
}

// unwatch returns when report will not run any more.
func (c *contact) unwatch() {
	if c.process != nil {
		c.process.unfollow(c)
	}
	if c.token != 0 {
		processWatcher.remove(c.token)
		c.token = 0
	}
}

// report runs once at most, on the watcher's goroutine or in watch: the process or the
// connection has ended, or the watcher itself has failed.
func (c *contact) report(failure error, ring func()) {
	switch {
	case failure != nil:
		failure = fmt.Errorf("rank %d (process %d) is not watched any more: %w", c.rank, c.pid, failure)
	case c.kind == byConnection && sentShutdown(c.conn):
		return
	default:
		failure = fmt.Errorf("rank %d (process %d): %w", c.rank, c.pid, domain.ErrExited)
	}
	c.lost.Store(&failure)
	ring()
}

// sentShutdown reports whether the connection ended with a shutdown notice (the peer has
// closed its domain or gave the rendezvous up): its process need not have ended.
func sentShutdown(conn *sys.FD) bool {
	msg, fds, err := receive(conn)
	sys.CloseAll(fds...)
	return err == nil && (msg.kind == kindShutdown || msg.kind == kindAbort)
}

// end stops watching and gives up the descriptors. Rank self sends a shutdown notice where
// the peer would take the end of the connection for a death. Idempotent.
func (c *contact) end(self int) {
	c.unwatch()
	if c.keep && c.conn != nil && c.conn.Raw() >= 0 {
		shutdown := message{kind: kindShutdown, rank: self}
		_ = sys.Send(c.conn, shutdown.marshal()) // the peer may be gone
	}
	c.endMu.Lock()
	defer c.endMu.Unlock()
	sys.CloseAll(c.conn)
	if c.process != nil && !c.ended {
		peerProcesses.release(c.process)
	}
	c.ended = true
}

var errNoPidfd = errors.New("there is no pidfd of it")

// kill ends the process. The pidfd stays open meanwhile, though its other contacts may end:
// this one does not.
func (c *contact) kill() error {
	c.endMu.Lock()
	defer c.endMu.Unlock()
	if c.kind == bySameProcess {
		return fmt.Errorf("shm: rank %d is in this process", c.rank)
	}
	if c.process == nil {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, errNoPidfd)
	}
	if c.ended {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, domain.ErrUnwatched)
	}
	if err := sys.KillPidfd(c.process.pidfd); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, err)
	}
	return nil
}
