package shm

import (
	"errors"
	"sync"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// process is a peer's process, which all domains of this process that know it share: one
// pidfd, and one place at the watcher. The last contact that releases it closes both.
type process struct {
	kind  livenessKind // byPeerPidfd or byPidfdOpen
	key   processKey
	pidfd *sys.FD

	// Guarded by the table's lock.
	refs  int
	token int32 // of the process's watcher; 0 until the first contact follows

	mu        sync.Mutex // guards what follows; after the watcher's
	followers map[*contact]func(failure error)
	reported  bool
	failure   error // of the watcher
}

// processKey names a process that lives: by its number, or where that is not visible from
// this pid namespace by what the kernel calls its pidfd. Zero where it gives neither.
type processKey struct {
	pid int
	id  uint64
}

// processTable has the processes that can be shared. Each is in use by a contact, which
// bounds them as contacts are bounded.
type processTable struct {
	mu     sync.Mutex // before the watcher's locks
	shared map[processKey]*process
}

// peerProcesses serves all domains of this process.
var peerProcesses = processTable{shared: map[processKey]*process{}}

// acquire returns the process with a number, opened if it is not known yet; release must
// follow. The number can be another process's by now only if the one that had it has ended,
// and then that one's pidfd can be read: so a number and a pidfd that cannot be read name
// one process. That the number is still the peer's is known because its "ready" comes later.
func (t *processTable) acquire(pid int, open func() (*sys.FD, livenessKind, error)) (*process, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := processKey{pid: pid}
	if p := t.known(key); p != nil {
		return p, nil
	}
	fd, kind, err := open()
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		key.id = sys.PidfdID(fd)
		if p := t.known(key); p != nil {
			sys.CloseAll(fd)
			return p, nil
		}
	}
	p := &process{kind: kind, key: key, pidfd: fd, refs: 1, followers: map[*contact]func(error){}}
	if key != (processKey{}) {
		t.shared[key] = p
	}
	return p, nil
}

// known takes a reference to a process that is there and lives.
func (t *processTable) known(key processKey) *process {
	p := t.shared[key]
	if p == nil || !p.lives() {
		return nil
	}
	p.refs++
	return p
}

// lives reports whether the process has not ended, and is watched if it is followed.
func (p *process) lives() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reported {
		return false
	}
	_, err := sys.WaitReadable([]*sys.FD{p.pidfd}, time.Time{})
	return errors.Is(err, sys.ErrTimeout)
}

func (t *processTable) release(p *process) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.refs--; p.refs > 0 {
		return
	}
	if t.shared[p.key] == p { // else a successor has its number
		delete(t.shared, p.key)
	}
	if p.token != 0 {
		processWatcher.remove(p.token)
	}
	sys.CloseAll(p.pidfd)
}

// follow has report called once: with nil when the process has ended, perhaps before
// follow returns, or with the watcher's failure. After unfollow it is not called any more.
// report must call neither the table nor the watcher.
func (t *processTable) follow(p *process, c *contact, report func(failure error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if over, err := p.enter(c, report); over {
		return err
	}
	if p.token != 0 {
		return nil
	}
	token, err := processWatcher.add(p.pidfd, p.report)
	if err != nil {
		p.unfollow(c)
		return err
	}
	p.token = token
	return nil
}

// enter files a follower, unless there is nothing to wait for.
func (p *process) enter(c *contact, report func(failure error)) (over bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.failure != nil:
		return true, p.failure
	case p.reported:
		report(nil)
		return true, nil
	}
	p.followers[c] = report
	return false, nil
}

// unfollow returns when the follower's report will not run any more.
func (p *process) unfollow(c *contact) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.followers, c)
}

// report runs on the watcher's goroutine, once at most.
func (p *process) report(failure error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reported, p.failure = true, failure
	for c, report := range p.followers {
		delete(p.followers, c)
		report(failure)
	}
}
