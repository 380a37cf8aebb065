package local

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
)

// unitBytes is how much of an arena is made present at a time. The server takes memory for whole segments, which are
// a multiple of it.
const unitBytes = 1 << 20

// View is another process's, for reading: the arena of a server, or the bounce buffer of a client. Its bytes are as they
// are found: the other side changes them, so that only a tag says whether what was read is a block. Safe for concurrent
// use.
type View struct {
	fd    *sys.FD
	bytes int64
	quick bool            // a read of it never waits for a disk
	arena *sys.Mapping    // if it is memory
	there []atomic.Uint64 // a bit for each unit of it with all pages present

	mu     sync.Mutex
	holds  int  // the owner's and those of Hold
	closed bool // by its owner
}

// NewView takes a descriptor over, also if it fails, and believes nothing of it. mapped: it has to be memory that
// can neither shrink nor be changed by its readers, and Bytes works. Else it may be any file of which a part can be read
// without waiting for a disk.
func NewView(fd *sys.FD, bytes int64, mapped bool) (*View, error) {
	v := &View{fd: fd, bytes: bytes, holds: 1}
	how := v.look
	if mapped {
		how = v.mapArena
	}
	err := how()
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// ViewBounce maps the bounce buffer of a client. It takes the descriptor over, also if it fails.
func ViewBounce(fd *sys.FD) (*View, error) {
	size, err := sys.Size(fd)
	if err == nil && (size < 1 || size > message.MaxBounceBytes) {
		err = fmt.Errorf("%d bytes given; allowed: 1 to %d", size, message.MaxBounceBytes)
	}
	if err != nil {
		return nil, errors.Join(err, fd.Close())
	}
	return NewView(fd, size, true)
}

// look finds out how a file can be read. sys.ErrWaits: it cannot.
func (v *View) look() (err error) {
	if v.quick, err = sys.HasNoDisk(v.fd); v.quick || err != nil {
		return err
	}
	var first [1]byte
	err = sys.ReadAtNow(v.fd, 0, first[:])
	if errors.Is(err, sys.ErrWaits) {
		return err
	}
	return nil
}

func (v *View) mapArena() error {
	if err := sys.CanPopulate(); err != nil {
		return fmt.Errorf("needs Linux 5.14 or later: %w", err)
	}
	sealed, err := sys.SealedForReaders(v.fd)
	if err != nil {
		return err
	}
	huge, err := sys.InHugePages(v.fd)
	if err != nil {
		return err
	}
	size, err := sys.Size(v.fd)
	if err != nil {
		return err
	}
	if !sealed || huge || size < v.bytes {
		return fmt.Errorf("a file of %d bytes (sealed: %v, huge pages: %v), not sealed memory of %d", size, sealed, huge, v.bytes)
	}
	if v.arena, err = sys.MapReadOnly(v.fd, 0, v.bytes); err != nil {
		return err
	}
	if err := v.arena.KeepFromChildren(); err != nil {
		return err
	}
	v.there = make([]atomic.Uint64, (v.bytes+64*unitBytes-1)/(64*unitBytes))
	return nil
}

// Read fills p from a place on. No file makes a signal: pages of memory are made present first, and stay, because the
// memory is sealed; from another file the kernel copies. It waits for no disk: sys.ErrAgain is said instead.
func (v *View) Read(place int64, p []byte) error {
	if v.arena != nil {
		data, err := v.Bytes(place, len(p))
		copy(p, data)
		return err
	}
	if !v.Has(place, len(p)) {
		return fmt.Errorf("%d bytes at %d of an arena of %d", len(p), place, v.bytes)
	}
	if v.quick {
		return sys.ReadAt(v.fd, place, p)
	}
	return sys.ReadAtNow(v.fd, place, p)
}

// Has reports whether n bytes from a place on are within.
func (v *View) Has(place int64, n int) bool { return place >= 0 && int64(n) <= v.bytes-place }

// Mapped reports whether Bytes works.
func (v *View) Mapped() bool { return v.arena != nil }

// Bytes is a part of an arena that is mapped, for a holder of the view. Its pages are there.
func (v *View) Bytes(place int64, n int) ([]byte, error) {
	if v.arena == nil || !v.Has(place, n) {
		return nil, fmt.Errorf("%d bytes at %d of an arena of %d (mapped: %v)", n, place, v.bytes, v.arena != nil)
	}
	end := place + int64(n)
	for at := place / unitBytes * unitBytes; at < end; at += unitBytes {
		if err := v.populate(at); err != nil {
			return nil, err
		}
	}
	return v.arena.Bytes()[place:end:end], nil
}

// populate makes the pages of a unit present, the first time.
func (v *View) populate(at int64) error {
	unit := at / unitBytes
	word, bit := &v.there[unit/64], uint64(1)<<(unit%64)
	if word.Load()&bit != 0 {
		return nil
	}
	if err := sys.Populate(v.arena.Bytes()[at:min(at+unitBytes, v.bytes)]); err != nil {
		return err
	}
	word.Or(bit)
	return nil
}

// FD is another descriptor of the arena, the caller's, for a holder of the view.
func (v *View) FD() (*sys.FD, error) { return sys.Dup(v.fd) }

// Hold keeps the view as it is until Release, also if it is closed. false: it has ended, because it was closed and
// not held.
func (v *View) Hold() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holds == 0 {
		return false
	}
	v.holds++
	return true
}

// Release ends a Hold.
func (v *View) Release() { _ = v.let() }

// Close gives up what the owner has of the view. Idempotent.
func (v *View) Close() error {
	v.mu.Lock()
	closed := v.closed
	v.closed = true
	v.mu.Unlock()
	if closed {
		return nil
	}
	return v.let()
}

// let is one holder less; the last one ends the view.
func (v *View) let() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holds--; v.holds > 0 {
		return nil
	}
	err := v.fd.Close()
	if v.arena != nil {
		err = errors.Join(err, v.arena.Unmap())
	}
	return err
}
