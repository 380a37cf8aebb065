package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/sys"
)

// member is one incarnation of a rank as this rank sees it: a process and
// the memory that it brought to a rendezvous. This rank's own is one too. It
// implements domain.Process.
type member struct {
	rank     int
	identity [nonceBytes]byte
	memory   *sys.FD // nil for a peer's that is mapped on from base
	shown    *sys.FD // of the next rank's: see dropFile
	base     *region // header, and the control region as its segment
	slabs    [MaxSlabs]atomic.Pointer[region]
	contact  atomic.Pointer[contact] // nil for this rank itself
	dying    atomic.Bool             // was dying when the memory was given up

	// users counts the calls that touch the mappings, plus shutBit. The last
	// one to leave a member that is shut unmaps.
	users atomic.Int64
	unmap sync.Once
}

const shutBit = 1 << 62

var _ domain.Endable = (*member)(nil)

// newOwnMember makes this rank's memfd: header and control region, zeroed
// and present.
func newOwnMember(info *Info, pages *Pages) (*member, error) {
	fd, err := pages.newMemory(fmt.Sprintf("moewire-rank-%d", info.Rank))
	if err != nil {
		return nil, err
	}
	err = sys.Grow(fd, baseBytes(info.ControlBytes))
	m := &member{rank: info.Rank, identity: info.Identity, memory: fd}
	if err == nil {
		err = m.mapBase(info.ControlBytes)
	}
	if err != nil {
		return nil, errors.Join(pages.explain(err, baseBytes(info.ControlBytes)), fd.Close())
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
func (m *member) holder() *atomic.Uint64   { return sys.Word(m.base.header, holderOffset) }

// entry returns the two words of a slab in the owner's table. The owner
// stores bytes first; an offset that is not zero publishes the slab.
func (m *member) entry(id int) (offset, bytes *atomic.Uint64) {
	off := int64(tableOffset + id*entryBytes)
	return sys.Word(m.base.header, off), sys.Word(m.base.header, off+entrySize)
}

// entry is what a table says of a slab.
type entry struct{ offset, bytes uint64 }

// entrySealShift is where a check of the whole entry lies in its bytes: above all sizes.
const entrySealShift = 48

func sealEntry(id int, off, n uint64) uint64 {
	sum := uint64(id) + 1
	for _, v := range [...]uint64{off, n} {
		sum = (sum ^ v) * 0x9e3779b97f4a7c15
		sum ^= sum >> 32
	}
	return n | sum>>entrySealShift<<entrySealShift
}

// mapSlab maps a peer's slab by its id. The table is not trusted: a bad entry is an
// error, never a fault.
func (m *member) mapSlab(id int) (*region, error) {
	offset, bytes := m.entry(id)
	off, sealed := offset.Load(), bytes.Load()
	n := sealed & (1<<entrySealShift - 1)
	switch {
	case off == 0:
		return nil, fmt.Errorf("shm: %w: rank %d has no slab %d", errCorrupt, m.rank, id)
	case sealed != sealEntry(id, off, n) || off%slabAlignment != 0 || off < uint64(firstSlab(m.base.SizeBytes())) ||
		off > maxSegmentBytes || n == 0 || n > maxSegmentBytes:
		return nil, fmt.Errorf("shm: rank %d: slab %d is said to be %d bytes at %d: %w",
			m.rank, id, n, off, errCorrupt)
	}
	r, err := m.mapRange(int64(off), int64(n))
	if err != nil {
		return nil, fmt.Errorf("shm: rank %d: slab %d: %w", m.rank, id, err)
	}
	return r, nil
}

// mapRange maps a range of a peer's memory if its file has it.
func (m *member) mapRange(off, n int64) (*region, error) {
	if m.memory != nil {
		if err := checkFile(m.memory, off+n); err != nil {
			return nil, fmt.Errorf("%w: %w", errCorrupt, err)
		}
		return mapRegion(m.memory, off, 0, n)
	}
	more, err := m.base.mapping.MapMore(off, n)
	if errors.Is(err, sys.ErrBeyondEnd) {
		err = fmt.Errorf("%w: %w", errCorrupt, err)
	}
	if err != nil {
		return nil, err
	}
	return newRegion(more, 0), nil
}

// dropFile closes a peer's descriptor once base is mapped. It stays where slabs cannot be
// mapped without it (huge pages that are reserved, an old kernel), which is tried. And each
// rank keeps that of the rank behind it, show: when a process has ended, programs that look
// from outside find by it what the rank has recorded.
func (m *member) dropFile(show bool) {
	probe, err := m.base.mapping.MapMore(0, headerBytes())
	if err != nil {
		return
	}
	_ = probe.Unmap() // fails only for a range that is not mapped
	if show {
		m.shown, m.memory = m.memory, nil
		return
	}
	sys.CloseAll(m.memory)
	m.memory = nil
}

var errCorrupt = fmt.Errorf("slab table: %w", domain.ErrCorrupt)

// wake ends the sleep of the member's waiters. A waker stores its word, then
// loads sleepers; a waiter adds to sleepers, then loads the word: both
// sequentially consistent (domain.Segment.Word), so one of the two
// sees the other.
func (m *member) wake() {
	if m.sleepers().Load() > 0 {
		m.bell().Add(1)
		_ = sys.FutexWakeAll(m.bell()) // fails only for an address that is not mapped
	}
}

// Lost is what the contact of the last rendezvous knows.
func (m *member) Lost() error {
	if c := m.contact.Load(); c != nil {
		if err := c.lost.Load(); err != nil {
			return *err
		}
	}
	return nil
}

// Dying looks at the word that the kernel marks when it ends the process, as
// long as the memory is mapped here: until the rank has been replaced.
func (m *member) Dying() bool {
	if m.contact.Load() == nil {
		return false
	}
	if m.Lost() != nil || m.dying.Load() {
		return true
	}
	marked := m.enter() && sys.OwnerDied(m.holder().Load())
	m.leave()
	return marked
}

func (m *member) PID() int {
	if c := m.contact.Load(); c != nil {
		return c.pid
	}
	return sys.Getpid()
}

// End kills the process.
func (m *member) End() error {
	for {
		c := m.contact.Load()
		if c == nil {
			return fmt.Errorf("shm: rank %d is in this process", m.rank)
		}
		err := c.kill()
		if !errors.Is(err, domain.ErrUnwatched) || m.contact.Load() == c {
			return err
		} // else it has come to another rendezvous meanwhile
	}
}

// enter begins a call that touches the mappings and says whether it may. In
// both cases leave must follow.
func (m *member) enter() bool { return m.users.Add(1)&shutBit == 0 }

func (m *member) leave() {
	if m.users.Add(-1) == shutBit {
		m.unmap.Do(m.release)
	}
}

// shut gives the memory up: no goroutine can enter any more, and one that is inside when
// it returns unmaps on leaving. Idempotent.
func (m *member) shut() {
	sys.CloseAll(m.memory, m.shown)
	if m.enter() && m.base != nil && m.contact.Load() != nil && sys.OwnerDied(m.holder().Load()) {
		m.dying.Store(true)
	}
	m.users.Or(shutBit)
	m.leave()
}

// end forgets the member altogether; self as in contact.end.
func (m *member) end(self int) {
	if c := m.contact.Load(); c != nil {
		c.end(self)
	}
	m.shut()
}

// release gives up this package's references to the mappings.
func (m *member) release() {
	if m.base != nil {
		m.base.Release()
	}
	for i := range m.slabs {
		if r := m.slabs[i].Swap(nil); r != nil {
			r.Release()
		}
	}
}

var _ domain.Segment = (*region)(nil)
