//go:build linux

package sys

import (
	"sync/atomic"
	"time"
)

// A forked child has a copy of every descriptor, close-on-exec or not. As long
// as it lives, the sockets of its parent do not close when the parent ends:
// connections do not break, and ports still listen. So the fork handler of the
// library (capi/forked.c) closes them in the child, where nothing of the library
// works anyway. Go cannot run there; it only notes which descriptors there are.

// maxInherited bounds the descriptors that are noted: by their number.
const maxInherited = 1 << 20

// ForkTable is what the fork handler of a process reads. Its layout is that of
// struct mwi_fork_table in C.
type ForkTable struct {
	making  atomic.Uint32 // threads that make a socket and note it, or drop one and close it
	forking atomic.Uint32 // threads that fork
	forks   atomic.Uint32 // that have begun, ever
	_       uint32
	held    [maxInherited / 64]atomic.Uint64
}

var forkTable atomic.Pointer[ForkTable]

// unwatched stands for it in programs that do not fork.
var unwatched ForkTable

// SetForkTable makes the table of the process's fork handler known, once, before
// any descriptor is made.
func SetForkTable(t *ForkTable) { forkTable.Store(t) }

// numForks is how many forks have begun.
func numForks() uint32 {
	if t := forkTable.Load(); t != nil {
		return t.forks.Load()
	}
	return 0
}

// noteFD has forked children close a descriptor.
func noteFD(raw int) {
	if t := forkTable.Load(); t != nil && uint(raw) < maxInherited {
		t.held[raw/64].Or(1 << (raw % 64))
	}
}

// dropFD comes before the descriptor is closed: its number may be used again.
func dropFD(raw int) {
	if t := forkTable.Load(); t != nil && uint(raw) < maxInherited {
		t.held[raw/64].And(^(uint64(1) << (raw % 64)))
	}
}

// A fork waits for at most forkTimeout until sockets that are being made are noted, and
// those that are being closed are closed. A thread that would make or close one waits as
// long for a fork to be over.
const forkPause = 50 * time.Microsecond

var forkTimeout = 10 * time.Millisecond // a variable for tests

// forkOutlasts is set once a fork was waited for in vain: no thread waits for it again.
var forkOutlasts atomic.Bool

// holdForks has forks wait until the table is released.
func holdForks() *ForkTable {
	t := forkTable.Load()
	if t == nil {
		t = &unwatched
	}
	for begin := (time.Time{}); ; {
		t.making.Add(1)
		switch {
		case t.forking.Load() == 0:
			forkOutlasts.Store(false)
			return t
		case forkOutlasts.Load():
			return t
		case begin.IsZero():
			begin = time.Now()
		case time.Since(begin) >= forkTimeout:
			forkOutlasts.Store(true)
			return t
		}
		t.release()
		time.Sleep(forkPause)
	}
}

func (t *ForkTable) release() { t.making.Add(^uint32(0)) }

// makeNoted makes a descriptor such that no fork comes between its making and
// its noting.
func makeNoted(open func() (raw int, err error)) (*FD, error) {
	defer holdForks().release()
	raw, err := open()
	if err != nil {
		return nil, err
	}
	return newFD(raw), nil
}

// closeNoted closes a descriptor such that no fork comes after the table has lost
// it and before it is closed: the child would keep its copy.
func closeNoted(raw int, shut func(raw int) error) error {
	defer holdForks().release()
	dropFD(raw)
	return shut(raw)
}
