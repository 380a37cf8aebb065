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
	token int32   // of the process's watcher; 0 while not watched
	lost  atomic.Pointer[error]
	open  sync.Mutex // held while pidfd is signalled or closed: its number may be reused
}

// watched is the descriptor that ends with the peer's process; nil when
// nothing can be learned.
func (c *contact) watched() *sys.FD {
	if c.kind == byConnection && !c.left {
		return c.conn
	}
	return c.pidfd
}

// watch registers the contact with the process's watcher. ring runs after
// the peer was found lost.
func (c *contact) watch(ring func()) (err error) {
	fd := c.watched()
	if fd == nil {
		return nil
	}
	c.token, err = processWatcher.add(fd, func(failure error) { c.report(failure, ring) })
	if err != nil {
		return fmt.Errorf("rank %d: watching its process: %w", c.rank, err)
	}
	return nil
}

// unwatch returns when report will not run any more.
func (c *contact) unwatch() {
	if c.token != 0 {
		processWatcher.remove(c.token)
		c.token = 0
	}
}

// report runs on the watcher's goroutine, once at most: the descriptor is
// readable, or the watcher itself has failed.
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

// end stops watching and closes the descriptors. self sends a shutdown notice where
// the peer would take the end of the connection for a death.
func (c *contact) end(self int) {
	c.unwatch()
	if c.keep && c.conn != nil && c.conn.Raw() >= 0 {
		shutdown := message{kind: kindShutdown, rank: self}
		_ = sys.Send(c.conn, shutdown.marshal()) // the peer may be gone
	}
	c.open.Lock()
	defer c.open.Unlock()
	sys.CloseAll(c.conn, c.pidfd)
}

var errNoPidfd = errors.New("there is no pidfd of it")

// kill ends the process.
func (c *contact) kill() error {
	c.open.Lock()
	defer c.open.Unlock()
	if c.kind == bySameProcess {
		return fmt.Errorf("shm: rank %d is in this process", c.rank)
	}
	if c.pidfd == nil {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, errNoPidfd)
	}
	if c.pidfd.Raw() < 0 {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, domain.ErrUnwatched)
	}
	if err := sys.KillPidfd(c.pidfd); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("shm: rank %d (process %d): %w", c.rank, c.pid, err)
	}
	return nil
}
