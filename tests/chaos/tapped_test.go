package chaos

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/group/domain"
)

// tappedDomain is a domain in which every access passes a point.
type tappedDomain struct {
	domain.Domain
	trap *trap

	mu   sync.Mutex
	segs map[domain.Segment]*tappedSegment // one for each, so that they compare
}

func tapDomain(d domain.Domain, t *trap) *tappedDomain {
	return &tappedDomain{Domain: d, trap: t, segs: map[domain.Segment]*tappedSegment{}}
}

func (d *tappedDomain) tap(s domain.Segment, rank int, name func(int64) point) domain.Segment {
	if s == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.segs[s] == nil {
		seg := &tappedSegment{Segment: s, trap: d.trap, name: name}
		if rank != d.Rank() {
			seg.shift = 1
		}
		d.segs[s] = seg
	}
	return d.segs[s]
}

func (d *tappedDomain) Members() domain.MemberWord {
	d.trap.hit(atMembers)
	return tappedWord{d.Domain.Members(), d.trap, d.Rank()}
}

func (d *tappedDomain) Remote() domain.Remote {
	f := d.Domain.Remote()
	if f == nil {
		return nil
	}
	return tappedRemote{f, d.trap}
}

func (d *tappedDomain) Control(rank int) domain.Segment {
	return d.tap(d.Domain.Control(rank), rank, controlPoint)
}

func (d *tappedDomain) AddSlab(size int64) (int, domain.Segment, error) {
	d.trap.hit(atAddSlab)
	id, s, err := d.Domain.AddSlab(size)
	return id, d.tap(s, d.Rank(), slabPoint), err
}

func (d *tappedDomain) Slab(rank, id int) (domain.Segment, error) {
	d.trap.hit(atSlab)
	s, err := d.Domain.Slab(rank, id)
	return d.tap(s, rank, slabPoint), err
}

func (d *tappedDomain) Wake(rank int) {
	d.trap.hit(atWake)
	d.Domain.Wake(rank)
}

func (d *tappedDomain) Sleep(ticket uint32, t time.Duration) {
	d.trap.hit(atSleep)
	d.Domain.Sleep(ticket, t)
	d.trap.hit(atSlept)
}

func (d *tappedDomain) Yield() {
	d.trap.hit(atYield)
	d.Domain.Yield()
}

// tappedSegment is a segment of a tappedDomain. shift leads from a point in
// the rank's own memory to that in a peer's.
type tappedSegment struct {
	domain.Segment
	trap  *trap
	name  func(int64) point
	shift point
}

func (s *tappedSegment) Word(off int64) *atomic.Uint64 {
	s.trap.hit(s.name(off) + s.shift)
	return s.Segment.Word(off)
}

func (s *tappedSegment) Bytes(off, n int64) []byte {
	s.trap.hit(atBytes + s.shift)
	return s.Segment.Bytes(off, n)
}

// tappedKernels pass a point in the middle of their work.
type tappedKernels struct {
	device.Kernels
	trap *trap
}

func (k tappedKernels) Place(b *device.PlaceBatch) {
	half := *b
	half.Jobs = b.Jobs[:len(b.Jobs)/2]
	k.Kernels.Place(&half)
	k.trap.hit(atPlace)
	half.Jobs = b.Jobs[len(b.Jobs)/2:]
	k.Kernels.Place(&half)
}

func (k tappedKernels) Reduce(b *device.ReduceBatch) {
	tokens := len(b.Jobs) / b.TopK
	k.reduce(*b, 0, tokens/2)
	k.trap.hit(atReduce)
	k.reduce(*b, tokens/2, tokens)
}

func (k tappedKernels) reduce(b device.ReduceBatch, from, to int) {
	b.Out = b.Out[from*b.OutRowBytes() : to*b.OutRowBytes()]
	b.Jobs = b.Jobs[from*b.TopK : to*b.TopK]
	b.Weights = b.Weights[from*b.TopK : to*b.TopK]
	k.Kernels.Reduce(&b)
}

func (k tappedKernels) Copy(jobs []device.CopyJob) {
	k.Kernels.Copy(jobs[:len(jobs)/2])
	k.trap.hit(atCopy)
	k.Kernels.Copy(jobs[len(jobs)/2:])
}
