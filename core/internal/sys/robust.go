//go:build linux

package sys

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RobustBytes is what one entry of a RobustList takes: the futex word, then
// the link to the next entry.
const RobustBytes = 16

const (
	robustLink = 8    // of the link, from the futex word
	robustMax  = 2000 // the kernel looks at 2048 entries and no further
	ownerDied  = 0x40000000
)

var (
	errRobustClosed = errors.New("robust list is closed")
	errRobustFull   = errors.New("robust list is full")
)

// OwnerDied reports whether the kernel has marked a robust futex word: the
// thread that held it has ended.
func OwnerDied(word uint64) bool { return word&ownerDied != 0 }

// RobustList is the kernel's list of futexes that one thread holds. However
// the thread ends, the kernel first marks their words (OwnerDied): long
// before it has torn down the memory of a large process and its pidfd tells.
//
// A SIGKILL can arrive between any two stores, so the list is well formed after each of
// them. Entries are complete before they are linked, and keep their link after they are
// unlinked.
type RobustList struct {
	tid  uint32
	head *robustHead
	pin  runtime.Pinner // the kernel knows the head's address
	old  uintptr        // the thread's list before, usually the C library's

	mu      sync.Mutex // guards what follows and all links
	entries []robustEntry
	closed  bool
}

// robustHead is struct robust_list_head.
type robustHead struct {
	next    atomic.Uint64 // address of the first link, or of this head
	offset  int64         // from a link to its futex word
	pending uintptr
}

// robustEntry is linked behind its successor in RobustList.entries.
type robustEntry struct{ word, link *atomic.Uint64 }

// NewRobustList registers a list for the calling thread, which must be
// locked to its goroutine until Close.
func NewRobustList() (*RobustList, error) {
	l := &RobustList{tid: uint32(unix.Gettid()), head: &robustHead{offset: -robustLink}}
	l.pin.Pin(l.head)
	l.head.next.Store(address(&l.head.next))
	l.old = currentRobustList()
	if err := setRobustList(uintptr(unsafe.Pointer(l.head))); err != nil {
		l.pin.Unpin()
		return nil, err
	}
	return l, nil
}

// Hold makes the thread the holder of the futex word at data[off], which is
// followed by room for the link. The memory must stay mapped until Drop.
func (l *RobustList) Hold(data []byte, off int64) error {
	e := robustEntry{Word(data, off), Word(data, off+robustLink)}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return errRobustClosed
	case len(l.entries) == robustMax:
		return errRobustFull
	}
	e.link.Store(l.head.next.Load())
	e.word.Store(uint64(l.tid))
	l.head.next.Store(address(e.link))
	l.entries = append(l.entries, e)
	return nil
}

// Drop lets the word at data[off] go and sets it to 0. It does nothing when
// the thread does not hold it.
func (l *RobustList) Drop(data []byte, off int64) {
	word := Word(data, off)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.entries {
		if e.word == word {
			l.before(i).Store(l.behind(i)) // not what the link holds: peers can write there
			word.Store(0)
			l.entries = append(l.entries[:i], l.entries[i+1:]...)
			return
		}
	}
}

// before returns the link that leads to entry i.
func (l *RobustList) before(i int) *atomic.Uint64 {
	if i == len(l.entries)-1 {
		return &l.head.next
	}
	return l.entries[i+1].link
}

// behind is the address that the link of entry i was given.
func (l *RobustList) behind(i int) uint64 {
	if i == 0 {
		return address(&l.head.next)
	}
	return address(l.entries[i-1].link)
}

// Len is the number of words held.
func (l *RobustList) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}

// Close lets all words go, then gives the thread its former list back. It
// must run on the list's thread. Idempotent.
func (l *RobustList) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	for _, e := range l.entries {
		e.word.Store(0) // before anything that could end the thread
	}
	l.head.next.Store(address(&l.head.next))
	l.entries = nil
	_ = setRobustList(l.old) // fails only for a size that the kernel does not know
	l.pin.Unpin()
}

func address(w *atomic.Uint64) uint64 { return uint64(uintptr(unsafe.Pointer(w))) }

// currentRobustList is the calling thread's list, 0 if it has none.
func currentRobustList() uintptr {
	var head, size uintptr
	_, _, errno := unix.Syscall(unix.SYS_GET_ROBUST_LIST, 0, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0
	}
	return head
}

func setRobustList(head uintptr) error {
	_, _, errno := unix.Syscall(unix.SYS_SET_ROBUST_LIST, head, unsafe.Sizeof(robustHead{}), 0)
	if errno != 0 {
		return wrap("set_robust_list", errno)
	}
	return nil
}
