package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// hostDomain implements domain.Domain over memfds. Words and segments that it
// has handed out must not be used after Close, except those of retained
// segments; its methods may be called then and do nothing.
type hostDomain struct {
	info    Info // of the first rendezvous
	pages   Pages
	own     *member
	members atomic.Pointer[memberspage]

	// peers are the ranks of the last rendezvous, own included; nil for absent
	// ones. Readers need no lock; Commit replaces them under mu.
	peers   [rankset.MaxRanks]atomic.Pointer[member]
	present rankset.Atomic
	closed  atomic.Bool // set under mu

	entries    [MaxSlabs]entry // of the own table, as they were stored
	numEntries atomic.Int64    // complete ones

	mu       sync.Mutex                // guards what follows, mapping slabs, and closing
	known    [rankset.MaxRanks]*member // the last incarnation of every peer, absent ones too
	former   []*member                 // replaced ones with a process that may live
	oldPages []*memberspage            // replaced ones, which another goroutine may still look at
	change   *Change                   // of a rendezvous that is neither committed nor aborted
	held     bool                      // the watcher's thread holds own's word
	numSlabs int
	end      int64 // of the own memfd, bytes
}

var (
	_           domain.Domain = (*hostDomain)(nil)
	openDomains atomic.Int64
)

// newDomain takes what a first rendezvous has gathered; on error it has taken
// nothing.
func newDomain(m *rendezvous, own *member, info Info, pages Pages) (*hostDomain, error) {
	page, err := mapMembers(m.membersFD)
	if err != nil {
		return nil, fmt.Errorf("rank %d: members page: %w", m.source(), err)
	}
	d := &hostDomain{info: info, pages: pages, own: own, end: firstSlab(info.ControlBytes)}
	if err := m.settle(d.ring); err != nil {
		page.Release()
		return nil, err
	}
	d.members.Store(&memberspage{region: page, fd: m.membersFD})
	d.peers[info.Rank].Store(own)
	d.install(m.peers, m.present)
	openDomains.Add(1)
	return d, nil
}

func (d *hostDomain) Rank() int { return d.info.Rank }

func (d *hostDomain) NumRanks() int { return d.info.NumRanks }

// Members is a word in a page that the group's first ranks have made and every rank maps:
// epoch in the top 16 bits, ranks below.
func (d *hostDomain) Members() domain.MemberWord { return d.members.Load().Word(0) }

func (d *hostDomain) Present() rankset.Set { return d.present.Load() }

func (d *hostDomain) Control(rank int) domain.Segment {
	if p := d.peers[rank].Load(); p != nil {
		return p.base
	}
	return nil
}

func (d *hostDomain) Process(rank int) domain.Process {
	if p := d.peers[rank].Load(); p != nil {
		return p
	}
	return nil
}

func (d *hostDomain) AddSlab(sizeBytes int64) (int, domain.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed.Load():
		return 0, nil, fmt.Errorf("shm: add slab: %w", transport.ErrClosed)
	case sizeBytes <= 0 || sizeBytes > maxSegmentBytes-d.end:
		return 0, nil, fmt.Errorf("shm: add slab: %d bytes are not possible", sizeBytes)
	case d.numSlabs == MaxSlabs:
		return 0, nil, fmt.Errorf("shm: add slab: all %d slabs of rank %d are in use", MaxSlabs, d.Rank())
	}
	r, err := d.growBy(sizeBytes)
	if err != nil {
		return 0, nil, fmt.Errorf("shm: add slab of %d bytes: %w", sizeBytes, err)
	}
	id := d.numSlabs
	d.numSlabs++
	d.publish(id, d.end, sizeBytes, r)
	d.end = alignUp(d.end+sizeBytes, slabAlignment)
	return id, r, nil
}

// growBy appends a range to the own memfd and maps it. A range that cannot
// be mapped is used again by the next call.
func (d *hostDomain) growBy(sizeBytes int64) (*region, error) {
	fileEnd := d.end + alignUp(sizeBytes, int64(sys.PageSize()))
	if size, err := sys.Size(d.own.memory); err != nil {
		return nil, err
	} else if size < fileEnd {
		if err := sys.Grow(d.own.memory, fileEnd); err != nil {
			return nil, err
		}
	}
	r, err := mapRegion(d.own.memory, d.end, 0, sizeBytes)
	if err != nil {
		return nil, d.pages.explain(err, sizeBytes)
	}
	if err := d.pages.apply(r, true); err != nil {
		r.Release()
		return nil, err
	}
	return r, nil
}

// publish lets peers find the slab: the offset last.
func (d *hostDomain) publish(id int, off, sizeBytes int64, r *region) {
	d.own.slabs[id].Store(r)
	offset, bytes := d.own.entry(id)
	d.entries[id] = entry{uint64(off), sealEntry(id, uint64(off), uint64(sizeBytes))}
	bytes.Store(d.entries[id].bytes)
	offset.Store(d.entries[id].offset)
	d.numEntries.Store(int64(id) + 1)
}

// CheckOwn says whether the table of this rank's slabs still is what it has stored: peers
// can write there.
func (d *hostDomain) CheckOwn() error {
	for id := range int(d.numEntries.Load()) {
		offset, bytes := d.own.entry(id)
		if held := (entry{offset.Load(), bytes.Load()}); held != d.entries[id] {
			return fmt.Errorf("%#x and %#x in entry %d, where %#x and %#x were stored", held.offset, held.bytes,
				id, d.entries[id].offset, d.entries[id].bytes)
		}
	}
	return nil
}

// RestoreOwn stores the table once more.
func (d *hostDomain) RestoreOwn() {
	for id := range int(d.numEntries.Load()) {
		offset, bytes := d.own.entry(id)
		bytes.Store(d.entries[id].bytes)
		offset.Store(d.entries[id].offset)
	}
}

func (d *hostDomain) Slab(rank, id int) (domain.Segment, error) {
	if rank < 0 || rank >= d.NumRanks() || id < 0 || id >= MaxSlabs {
		return nil, fmt.Errorf("shm: slab %d of rank %d: %w: %d ranks with %d slabs each are possible", id, rank, errCorrupt, d.NumRanks(), MaxSlabs)
	}
	if p := d.peers[rank].Load(); p != nil {
		if r := p.slabs[id].Load(); r != nil && !d.closed.Load() {
			return r, nil
		}
	}
	return d.firstUse(rank, id)
}

func (d *hostDomain) firstUse(rank, id int) (domain.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.peers[rank].Load()
	switch {
	case d.closed.Load():
		return nil, fmt.Errorf("shm: slab: %w", transport.ErrClosed)
	case p == nil:
		return nil, fmt.Errorf("shm: slab %d of rank %d: the rank is absent", id, rank)
	}
	if r := p.slabs[id].Load(); r != nil {
		return r, nil
	}
	if p == d.own {
		return nil, fmt.Errorf("shm: %w: rank %d has no slab %d", errCorrupt, rank, id)
	}
	r, err := p.mapSlab(id)
	if err != nil {
		return nil, err
	}
	_ = d.pages.apply(r, false) // fails for slabs of this rank alone
	p.slabs[id].Store(r)
	return r, nil
}

// Liveness says how this rank would notice a rank's death, in words.
func (d *hostDomain) Liveness(rank int) string {
	p := d.peers[rank].Load()
	if p == nil {
		return "absent"
	}
	if c := p.contact.Load(); c != nil {
		return c.kind.String()
	}
	return bySameProcess.String()
}

func (d *hostDomain) Wake(rank int) {
	p := d.peers[rank].Load()
	if p == nil {
		return
	}
	if p.enter() {
		p.wake()
	}
	p.leave()
}

// PrepareSleep stays inside until Sleep or CancelSleep, so that Close does
// not unmap the bell under a sleeper.
func (d *hostDomain) PrepareSleep() uint32 {
	if !d.own.enter() {
		return 0
	}
	d.own.sleepers().Add(1)
	return uint32(d.own.bell().Load())
}

func (d *hostDomain) CancelSleep() {
	// A goroutine that entered before Close may still touch the bell; one that entered
	// later sees that the domain is closed.
	if !d.closed.Load() {
		d.own.sleepers().Add(^uint64(0))
	}
	d.own.leave()
}

func (d *hostDomain) Sleep(ticket uint32, t time.Duration) {
	if !d.closed.Load() {
		_ = sys.FutexWait(d.own.bell(), ticket, t) // fails only for bad addresses
	}
	d.CancelSleep()
}

// ring wakes this rank's own sleepers, whatever their count says.
func (d *hostDomain) ring() {
	d.own.bell().Add(1)
	_ = sys.FutexWakeAll(d.own.bell())
}

// Remote: all memory can be mapped.
func (d *hostDomain) Remote() domain.Remote { return nil }

// Yield also lets other goroutines run when several ranks share this process:
// the kernel knows nothing of them.
func (d *hostDomain) Yield() {
	if openDomains.Load() > 1 {
		runtime.Gosched()
	}
	sys.Yield()
}

// Close leaves nothing behind but retained segments. Calls that are inside
// (sleepers are woken) finish first; the last of them unmaps.
func (d *hostDomain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed.Swap(true) {
		return nil
	}
	if d.change != nil {
		d.change.abort()
	}
	if d.held {
		processWatcher.unhold(d.own.base.header, holderOffset)
	}
	for _, p := range append(d.former, d.known[:]...) {
		if p != nil {
			p.end(d.Rank())
		}
	}
	d.ring()
	d.own.shut()
	for _, p := range d.oldPages {
		p.Release()
	}
	openDomains.Add(-1)
	page := d.members.Load()
	page.Release()
	return page.fd.Close()
}
