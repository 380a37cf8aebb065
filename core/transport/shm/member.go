package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// member is one rank's memory as this rank sees it, its own included.
type member struct {
	rank   int
	memory *sys.FD
	base   *region // header, and the control region as its segment
	slabs  [MaxSlabs]atomic.Pointer[region]

	// Of peers only.
	conn  *sys.FD // closed after the meeting, unless liveness hangs on it
	keep  bool    // conn stays open: it is this side's liveness or the other's
	ready bool    // it has said that it has everything
	over  bool    // its connection has ended, after ready
	left  bool    // it has said good-bye
	watch liveness

	released sync.Once
}

// newOwnMember makes this rank's memfd: header and control region, zeroed
// and present.
func newOwnMember(rank int, controlBytes int64) (*member, error) {
	fd, err := sys.NewMemfd(fmt.Sprintf("moewire-rank-%d", rank))
	if err != nil {
		return nil, err
	}
	err = sys.Grow(fd, baseBytes(controlBytes))
	m := &member{rank: rank, memory: fd}
	if err == nil {
		err = m.mapBase(controlBytes)
	}
	if err != nil {
		return nil, errors.Join(err, fd.Close())
	}
	return m, nil
}

// mapBase maps header and control region of a memfd that is large enough.
func (m *member) mapBase(controlBytes int64) (err error) {
	if err = checkFile(m.memory, baseBytes(controlBytes)); err != nil {
		return err
	}
	if m.base, err = mapRegion(m.memory, 0, headerBytes(), controlBytes); err != nil {
		return err
	}
	sys.Prefault(m.base.mapping.Bytes())
	return nil
}

// checkFile makes sure that touching the first n bytes of fd can never raise
// SIGBUS: they are there, and the file cannot shrink.
func checkFile(fd *sys.FD, n int64) error {
	sealed, err := sys.CannotShrink(fd)
	if err != nil {
		return err
	}
	size, err := sys.Size(fd)
	switch {
	case err != nil:
		return err
	case !sealed:
		return errors.New("memory file may shrink")
	case size < n:
		return fmt.Errorf("memory file has %d bytes, %d are needed", size, n)
	}
	return nil
}

func (m *member) bell() *atomic.Uint64     { return sys.Word(m.base.header, bellOffset) }
func (m *member) sleepers() *atomic.Uint64 { return sys.Word(m.base.header, sleepersOffset) }

// entry returns the two words of a slab in the owner's table. The owner
// stores bytes first; an offset that is not zero publishes the slab.
func (m *member) entry(id int) (offset, bytes *atomic.Uint64) {
	off := int64(tableOffset + id*entryBytes)
	return sys.Word(m.base.header, off), sys.Word(m.base.header, off+entrySize)
}

// mapSlab maps a peer's slab by its id. Nothing that the table says is
// believed: a bad entry is an error, never a fault.
func (m *member) mapSlab(id int) (*region, error) {
	offset, bytes := m.entry(id)
	off, n := offset.Load(), bytes.Load()
	switch {
	case off == 0:
		return nil, fmt.Errorf("shm: rank %d has no slab %d", m.rank, id)
	case off%slabAlignment != 0 || off < uint64(firstSlab(m.base.SizeBytes())) ||
		off > maxSegmentBytes || n == 0 || n > maxSegmentBytes:
		return nil, fmt.Errorf("shm: rank %d: slab %d is said to be %d bytes at %d: %w",
			m.rank, id, n, off, errCorrupt)
	}
	if err := checkFile(m.memory, int64(off+n)); err != nil {
		return nil, fmt.Errorf("shm: rank %d: slab %d: %w: %w", m.rank, id, errCorrupt, err)
	}
	r, err := mapRegion(m.memory, int64(off), 0, int64(n))
	if err != nil {
		return nil, fmt.Errorf("shm: rank %d: slab %d: %w", m.rank, id, err)
	}
	return r, nil
}

var errCorrupt = errors.New("corrupt slab table")

// wake ends the sleep of the member's waiters. A waker stores its word, then
// loads sleepers; a waiter adds to sleepers, then loads the word: both
// sequentially consistent (core/transport.Segment.Word), so one of the two
// sees the other.
func (m *member) wake() {
	if m.sleepers().Load() > 0 {
		m.bell().Add(1)
		_ = sys.FutexWakeAll(m.bell()) // fails only for an address that is not mapped
	}
}

// drop closes the descriptors and gives up this package's references to the
// mappings. Idempotent.
func (m *member) drop() {
	m.closeFDs()
	m.release()
}

func (m *member) closeFDs() {
	sys.CloseAll(m.memory, m.conn, m.watch.pidfd)
}

func (m *member) release() {
	m.released.Do(func() {
		if m.base != nil {
			m.base.Release()
		}
		for i := range m.slabs {
			if r := m.slabs[i].Swap(nil); r != nil {
				r.Release()
			}
		}
	})
}

var _ transport.Segment = (*region)(nil)
