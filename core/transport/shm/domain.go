package shm

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// domain implements transport.Domain over memfds. Words and segments that it
// has handed out must not be used after Close, except those of retained
// segments; its methods may be called then and do nothing.
type domain struct {
	rank      int
	peers     []*member // by rank, own included; fixed
	members   *region
	membersFD *sys.FD
	watches   []int32
	lost      [transport.MaxRanks]atomic.Pointer[error]

	mu       sync.Mutex // guards mapping slabs and closing
	numSlabs int
	end      int64 // of the own memfd, bytes

	// users counts the calls that touch the mappings, plus closedBit. The
	// last one to leave a closed domain unmaps.
	users atomic.Int64
	unmap sync.Once
}

const closedBit = 1 << 62

var (
	_           transport.Domain = (*domain)(nil)
	openDomains atomic.Int64
)

// newDomain takes what a meeting has gathered; on error it has taken
// nothing.
func newDomain(m *meeting) (*domain, error) {
	d := &domain{
		rank: m.self, peers: make([]*member, len(m.peers)), members: m.members, membersFD: m.membersFD,
		end: firstSlab(m.own.base.SizeBytes()),
	}
	copy(d.peers, m.peers)
	d.peers[d.rank] = m.own
	if err := d.startWatching(); err != nil {
		return nil, err
	}
	for _, p := range d.peers {
		if !p.keep {
			sys.CloseAll(p.conn)
		}
	}
	openDomains.Add(1)
	return d, nil
}

func (d *domain) Rank() int { return d.rank }

func (d *domain) NumRanks() int { return len(d.peers) }

// Members is a word in a page of rank 0 that everybody maps: epoch in the
// top 16 bits, ranks below.
func (d *domain) Members() *atomic.Uint64 { return d.members.Word(0) }

func (d *domain) Control(rank int) transport.Segment { return d.peers[rank].base }

func (d *domain) own() *member { return d.peers[d.rank] }

func (d *domain) closed() bool { return d.users.Load()&closedBit != 0 }

// enter begins a call that touches the mappings and says whether it may. In
// both cases leave must follow.
func (d *domain) enter() bool { return d.users.Add(1)&closedBit == 0 }

func (d *domain) leave() {
	if d.users.Add(-1) == closedBit {
		d.unmap.Do(d.release)
	}
}

func (d *domain) release() {
	for _, p := range d.peers {
		p.release()
	}
	d.members.Release()
}

func (d *domain) AddSlab(sizeBytes int64) (int, transport.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed():
		return 0, nil, fmt.Errorf("shm: add slab: %w", transport.ErrClosed)
	case sizeBytes <= 0 || sizeBytes > maxSegmentBytes-d.end:
		return 0, nil, fmt.Errorf("shm: add slab: %d bytes are not possible", sizeBytes)
	case d.numSlabs == MaxSlabs:
		return 0, nil, fmt.Errorf("shm: add slab: all %d slabs of rank %d are in use", MaxSlabs, d.rank)
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
func (d *domain) growBy(sizeBytes int64) (*region, error) {
	fileEnd := d.end + alignUp(sizeBytes, int64(sys.PageSize()))
	if size, err := sys.Size(d.own().memory); err != nil {
		return nil, err
	} else if size < fileEnd {
		if err := sys.Grow(d.own().memory, fileEnd); err != nil {
			return nil, err
		}
	}
	return mapRegion(d.own().memory, d.end, 0, sizeBytes)
}

// publish lets peers find the slab: the offset last.
func (d *domain) publish(id int, off, sizeBytes int64, r *region) {
	d.own().slabs[id].Store(r)
	offset, bytes := d.own().entry(id)
	bytes.Store(uint64(sizeBytes))
	offset.Store(uint64(off))
}

func (d *domain) Slab(rank, id int) (transport.Segment, error) {
	if rank < 0 || rank >= len(d.peers) || id < 0 || id >= MaxSlabs {
		return nil, fmt.Errorf("shm: slab %d of rank %d: %d ranks with %d slabs each are possible", id, rank, len(d.peers), MaxSlabs)
	}
	if r := d.peers[rank].slabs[id].Load(); r != nil && !d.closed() {
		return r, nil
	}
	return d.firstSight(d.peers[rank], id)
}

func (d *domain) firstSight(p *member, id int) (transport.Segment, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil, fmt.Errorf("shm: slab: %w", transport.ErrClosed)
	}
	if r := p.slabs[id].Load(); r != nil {
		return r, nil
	}
	if p.rank == d.rank {
		return nil, fmt.Errorf("shm: rank %d has no slab %d", p.rank, id)
	}
	r, err := p.mapSlab(id)
	if err != nil {
		return nil, err
	}
	p.slabs[id].Store(r)
	return r, nil
}

func (d *domain) Lost(rank int) error {
	if err := d.lost[rank].Load(); err != nil {
		return *err
	}
	return nil
}

// Liveness says how this rank would notice a rank's death, in words.
func (d *domain) Liveness(rank int) string { return d.peers[rank].watch.kind.String() }

func (d *domain) Wake(rank int) {
	if d.enter() {
		d.peers[rank].wake()
	}
	d.leave()
}

// PrepareSleep stays inside until Sleep or CancelSleep, so that Close does
// not unmap the bell under a sleeper.
func (d *domain) PrepareSleep() uint32 {
	if !d.enter() {
		return 0
	}
	d.own().sleepers().Add(1)
	return uint32(d.own().bell().Load())
}

func (d *domain) CancelSleep() {
	// Whoever entered before Close may still touch the bell; whoever
	// entered later sees that the domain is closed.
	if !d.closed() {
		d.own().sleepers().Add(^uint64(0))
	}
	d.leave()
}

func (d *domain) Sleep(ticket uint32, t time.Duration) {
	if !d.closed() {
		_ = sys.FutexWait(d.own().bell(), ticket, t) // fails only for bad addresses
	}
	d.CancelSleep()
}

// ring wakes this rank's own sleepers, whatever their count says.
func (d *domain) ring() {
	d.own().bell().Add(1)
	_ = sys.FutexWakeAll(d.own().bell())
}

// Yield also lets other goroutines run when several ranks share this process:
// the kernel knows nothing of them.
func (d *domain) Yield() {
	if openDomains.Load() > 1 {
		runtime.Gosched()
	}
	sys.Yield()
}

// Close leaves nothing behind but retained segments. Calls that are inside
// (sleepers are woken) finish first; the last of them unmaps.
func (d *domain) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed() {
		return nil
	}
	d.users.Add(closedBit + 1) // inside, until leave
	defer d.leave()
	processWatcher.remove(d.watches)
	d.ring()
	for _, p := range d.peers {
		if p.keep {
			bye := message{kind: kindBye, rank: d.rank}
			_ = sys.Send(p.conn, bye.marshal()) // the peer may be gone
		}
		p.closeFDs()
	}
	openDomains.Add(-1)
	return d.membersFD.Close()
}
