package cudaipc

import (
	"slices"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// holder is a process that may have the memory open by its IPC handle. It holds from
// before it was told that it may open it until it sends a shutdown notice or ends. The
// connection stands for one mapping of one process, whatever rank that process has, and
// whichever process has that rank next.
type holder struct {
	conn *sys.FD
	// process is nil where the kernel does not give one; then the end of the
	// connection stands for the process's. Else that end says nothing: the
	// mapping goes when the process has ended, or is left by a shutdown notice.
	process *sys.FD
	pid     int
}

var shutdownNotice = []byte("MWGB")

// hold takes over a pending connection. A process that was found by its number
// may be another one's successor: it is the one that asked if the connection is whole
// afterwards, which the answer tells.
func (d *listener) hold(conn *sys.FD) error {
	h := holder{conn: conn}
	if cred, err := sys.PeerCredentials(conn); err == nil {
		h.pid = cred.PID
	}
	var err error
	h.process, err = sys.PeerPidfd(conn)
	if err != nil && !sys.IsShortage(err) && h.pid != 0 {
		h.process, err = sys.OpenPidfd(h.pid)
	}
	if sys.IsShortage(err) { // that says nothing of the kernel
		return err
	}
	d.mu.Lock()
	d.holders = append(d.holders, h)
	d.mu.Unlock()
	return nil
}

// undoHold undoes the latest hold. The connection stays the caller's.
func (d *listener) undoHold() {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.holders) - 1
	sys.CloseAll(d.holders[last].process)
	d.holders[last] = holder{}
	d.holders = d.holders[:last]
}

// withHolders adds what tells of each holder's end: two entries for each.
func (d *listener) withHolders(fds []*sys.FD) []*sys.FD {
	for i := range d.holders {
		fds = append(fds, d.holders[i].conn, d.holders[i].process)
	}
	return fds
}

// forget drops the holders that have sent a shutdown notice or ended. Theirs are the
// indices in ready from first on.
func (d *listener) forget(ready []int, first int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	stay := d.holders[:0]
	for i, h := range d.holders {
		conn, process := slices.Contains(ready, first+2*i), slices.Contains(ready, first+2*i+1)
		if process || (conn && h.readRelease()) {
			sys.CloseAll(h.conn, h.process)
			continue
		}
		stay = append(stay, h)
	}
	clear(d.holders[len(stay):])
	d.holders = stay
}

// readRelease reads what a holder has said, and reports whether it holds nothing more.
func (h *holder) readRelease() (over bool) {
	text := make([]byte, len(shutdownNotice))
	n, fds, err := sys.Receive(h.conn, text, 1)
	sys.CloseAll(fds...)
	if err == nil && string(text[:n]) == string(shutdownNotice) {
		return true
	}
	if err == nil && n != 0 {
		return false // it has not learned that from us
	}
	sys.CloseAll(h.conn) // is not looked at any more
	return h.process == nil
}

// awaitHolders waits until no process holds the memory, however long that takes.
func (d *listener) awaitHolders() {
	for len(d.holders) > 0 {
		ready, err := sys.WaitReadable(d.withHolders(nil), time.Now().Add(time.Hour))
		if err != nil {
			time.Sleep(acceptRests)
			continue
		}
		d.forget(ready, 0)
	}
}

// pids are the processes that hold the memory; 0 for one that cannot be seen.
func (d *listener) pids() (pids []int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.holders {
		pids = append(pids, h.pid)
	}
	return pids
}
