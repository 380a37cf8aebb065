package cpu_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// incarnation is the memory and the bell of one actor, as package inproc has
// them. It has only as much memory as one small shape needs, because thousands of
// schedules each have their own.
type incarnation struct {
	st       *stage
	rank     int
	actor    *actor
	control  *segment
	slabs    []*segment
	dying    bool
	lost     bool
	bell     uint32
	sleepers int
	pump     *actor // of a group on several hosts
}

var errLost = fmt.Errorf("played: %w", domain.ErrExited)

func (in *incarnation) Lost() error {
	if in.st.yield(atLost); in.lost {
		return errLost
	}
	return nil
}

func (in *incarnation) Dying() bool {
	in.st.yield(atDying)
	return in.dying || in.lost
}

func (in *incarnation) PID() int { return 1 }

// ring ends the sleep of every actor that drew a ticket.
func (in *incarnation) ring() {
	in.bell++
	for _, a := range [...]*actor{in.actor, in.pump} {
		if a != nil && a.state == asleep {
			a.state = runnable
		}
	}
}

// playedDomain is one incarnation's view: the incarnations that it met at its last rendezvous.
type playedDomain struct {
	st      *stage
	inc     *incarnation
	members *atomic.Uint64
	view    []*incarnation
	lay     *layout.Slab
	flat    *layout.Slab
	remote  *remoteView // nil: all are on one host
	pages   map[*incarnation]*remotePage
}

var _ domain.Domain = (*playedDomain)(nil)

func (d *playedDomain) Rank() int     { return d.inc.rank }
func (d *playedDomain) NumRanks() int { return len(d.view) }

func (d *playedDomain) Members() domain.MemberWord {
	d.st.yield(atMembers)
	return d.members
}

func (d *playedDomain) Present() (ranks rankset.Set) {
	d.st.yield(atPresent)
	for r, in := range d.view {
		if in != nil {
			ranks = ranks.With(r)
		}
	}
	return ranks
}

func (d *playedDomain) Control(rank int) domain.Segment {
	if d.view[rank] == nil {
		return nil
	}
	if d.isRemote(rank) {
		return d.page(d.view[rank])
	}
	return d.view[rank].control
}

func (d *playedDomain) Process(rank int) domain.Process {
	if d.view[rank] == nil {
		return nil
	}
	return d.view[rank]
}

func (d *playedDomain) AddSlab(size int64) (int, domain.Segment, error) {
	d.st.yield(atAddSlab)
	seg := newSlabSegment(d.inc, d.lay, d.flat, size)
	d.inc.slabs = append(d.inc.slabs, seg)
	return len(d.inc.slabs) - 1, seg, nil
}

var errNoSlab = errors.New("no such slab")

func (d *playedDomain) Slab(rank, id int) (domain.Segment, error) {
	d.st.yield(atSlab)
	if in := d.view[rank]; in != nil && id < len(in.slabs) && !d.isRemote(rank) {
		return in.slabs[id], nil
	}
	return nil, errNoSlab
}

func (d *playedDomain) Wake(rank int) {
	d.st.yield(atWake)
	if in := d.view[rank]; in != nil && in.sleepers > 0 && !d.isRemote(rank) {
		in.ring()
	}
}

func (d *playedDomain) PrepareSleep() uint32 {
	d.st.yield(atPrepareSleep)
	d.inc.sleepers++
	return d.inc.bell
}

func (d *playedDomain) CancelSleep() {
	d.st.yield(atCancelSleep)
	d.inc.sleepers--
}

func (d *playedDomain) Sleep(ticket uint32, t time.Duration) {
	d.st.yield(atSleep)
	if a := d.st.cur; a != nil && d.inc.bell == ticket {
		a.state, a.until = asleep, d.st.alarm(t)
		d.st.pass(a)
	}
	d.inc.sleepers--
}

func (d *playedDomain) Remote() domain.Remote {
	if d.remote == nil || d.remote.ranks.Empty() {
		return nil
	}
	return d.remote
}

func (d *playedDomain) Yield() {
	d.st.now += yieldTime
	d.st.yield(atYield)
}

func (d *playedDomain) Close() error {
	d.loseMail()
	return nil
}

// loseMail takes along what is on its way.
func (d *playedDomain) loseMail() {
	if d.remote == nil {
		return
	}
	for _, m := range d.remote.out {
		if m != nil {
			m.lose()
		}
	}
}

// segment has words at its beginning, and regions of bytes further on.
type segment struct {
	owner   *incarnation
	control bool
	size    int64
	lay     *layout.Slab
	words   []atomic.Uint64
	layouts []atomic.Uint64
	unused  atomic.Uint64 // stands for counters that the shape does not have
	regions []layout.Region
	bytes   [][]byte
}

var _ domain.Segment = (*segment)(nil)

func newControl(owner *incarnation) *segment {
	return &segment{owner: owner, control: true, size: layout.ControlBytes, words: make([]atomic.Uint64, layout.ControlBytes/8)}
}

// newSlabSegment has room for packed rows and for flat ones. The regions of flat rows are
// parts of those of packed rows, except for the columns.
func newSlabSegment(owner *incarnation, lay, flat *layout.Slab, size int64) *segment {
	s := &segment{
		owner: owner, size: size, lay: lay,
		words:   make([]atomic.Uint64, layout.Counter(int(lay.LocalExperts))/8),
		layouts: make([]atomic.Uint64, lay.LocalExperts*lay.NumRanks),
		regions: []layout.Region{lay.SrcInfo(), lay.Rows(), lay.Y()},
	}
	for i, width := range flat.Columns {
		if width > 0 {
			s.regions = append(s.regions, flat.Column(i))
		}
	}
	for _, r := range s.regions {
		s.bytes = append(s.bytes, make([]byte, r.Bytes))
	}
	return s
}

// role makes a point that of the actor's own memory or that of a peer's.
func (s *segment) role(p point) point {
	if cur := s.owner.st.cur; cur != nil && cur.inc != s.owner {
		return p + 1
	}
	return p
}

func (s *segment) Word(off int64) *atomic.Uint64 {
	switch {
	case s.control:
		s.owner.st.yield(s.role(controlPoint(off)))
		return &s.words[off/8]
	case off < layout.HeaderBytes && off/8 >= int64(len(s.words)):
		return &s.unused
	}
	s.owner.st.yield(s.role(slabPoint(off)))
	if off < layout.HeaderBytes {
		return &s.words[off/8]
	}
	return &s.layouts[(off-s.lay.LayoutOff)/8]
}

func (s *segment) Bytes(off, n int64) []byte {
	s.owner.st.yield(s.role(atBytes))
	for i, r := range s.regions {
		if n > 0 && off >= r.Off && off+n <= r.Off+r.Bytes {
			return s.bytes[i][off-r.Off : off-r.Off+n]
		}
	}
	if n != 0 {
		panic(fmt.Sprintf("bytes %d to %d of a played slab", off, off+n))
	}
	return nil
}

func (s *segment) SizeBytes() int64      { return s.size }
func (s *segment) Prefault(off, n int64) {}
func (s *segment) Retain()               {}
func (s *segment) Release()              {}

// stepping makes kernels yield before every row.
type stepping struct {
	device.Kernels
	st *stage
}

func (k stepping) Place(b *device.PlaceBatch) {
	one := *b
	for i := range b.Jobs {
		k.st.yield(atPlace)
		one.Jobs = b.Jobs[i : i+1]
		k.Kernels.Place(&one)
	}
}

func (k stepping) Reduce(b *device.ReduceBatch) {
	one := *b
	row := b.Hidden * 2
	for t := range len(b.Jobs) / b.TopK {
		k.st.yield(atReduce)
		one.Out = b.Out[t*row : (t+1)*row]
		one.Jobs = b.Jobs[t*b.TopK : (t+1)*b.TopK]
		one.Weights = b.Weights[t*b.TopK : (t+1)*b.TopK]
		k.Kernels.Reduce(&one)
	}
}

func (k stepping) Copy(jobs []device.CopyJob) {
	for i := range jobs {
		k.st.yield(atCopy)
		k.Kernels.Copy(jobs[i : i+1])
	}
}
