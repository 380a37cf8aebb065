package cpu

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// outRows is how far a dispatch has got with a remote owner.
type outRows struct {
	op    uint64 // + 1; 0: none
	row   int    // rows that were sent
	entry int    // and their experts
}

// scatterList has, for every remote owner, the tokens that go there, once each, and
// their local experts: each once or, pre-reduced, each selection with its
// weight. An owner's tokens begin where its jobs do in the plan.
type scatterList struct {
	op      uint64 // + 1
	num     []int32
	tokens  []int32
	lens    []uint8
	first   []int32 // by rank: where its entries begin
	fill    []int32 // by rank: entries so far
	entries []uint16
	weights []float32 // [entries]; empty if not pre-reduced
}

// lease is a message that is being filled with a piece of rows.
type lease struct {
	msg        []byte
	parts      sections
	n, entries int
}

// leaseRemote begins messages with the next rows for remote owners, and returns those
// that have room for one.
func (b *Buffer) leaseRemote(s *slot, owners rankset.Set) (ready rankset.Set) {
	if owners.Empty() {
		return rankset.Set{}
	}
	b.makeScatterList(s)
	for r := range owners.All() {
		if f := &s.remote[r].rows; f.op != s.op+1 {
			*f = outRows{op: s.op + 1}
			b.openOffsets(s, r)
		}
		if b.leaseRows(s, r) {
			ready = ready.With(r)
		}
	}
	return ready
}

// sendRemote sends the messages that were filled, and more as long as there is
// room. It returns the owners that have all rows.
func (b *Buffer) sendRemote(s *slot, filled rankset.Set) (done rankset.Set) {
	for !filled.Empty() {
		last := b.postRows(s, filled)
		done = done.Or(last)
		if filled = b.leaseRemote(s, filled.Minus(last)); !filled.Empty() {
			b.placeJobs(s, b.remotePlaceJobs(s, filled))
		}
	}
	return done
}

// openOffsets sets where our rows begin in the owner's shadow slab: they are the first of
// every expert.
func (b *Buffer) openOffsets(s *slot, r int) {
	l := int(s.slab.LocalExperts)
	clear(s.plan.begin[r*l : (r+1)*l])
	s.plan.position(r, l)
}

// rowsAt is the number of our rows at rank r, one per expert.
func (b *Buffer) rowsAt(s *slot, r int) int64 {
	l := int(s.slab.LocalExperts)
	return int64(s.plan.first[(r+1)*l] - s.plan.first[r*l])
}

// makeScatterList makes the lists of an operation, once.
func (b *Buffer) makeScatterList(s *slot) {
	d, p := &s.scatter, &s.plan
	if d.op == s.op+1 {
		return
	}
	d.op = s.op + 1
	d.num, d.fill = resize(d.num, b.ranks), resize(d.fill, b.ranks)
	clear(d.num)
	clear(d.fill)
	d.tokens = resize(d.tokens, len(p.jobs))
	if s.slab.Flat {
		b.scatterFlat(s)
		return
	}
	d.lens = resize(d.lens, len(p.jobs))
	k, l := p.width, int(s.slab.LocalExperts)
	d.assignOffsets(s, b.ranks)
	for t := range int(s.params.tokens) {
		ids := p.topk[t*k : (t+1)*k]
		for i, id := range ids {
			if p.jobOf[t*k+i] < 0 || !b.isRemote(int(id)/l) || (!s.params.preReduce && firstIndex(ids[:i], id) >= 0) {
				continue
			}
			at := d.add(p, int32(t), int(id)/l, l, uint16(int(id)%l))
			if s.params.preReduce {
				d.weights[at] = s.weights[t*k+i]
			}
		}
	}
}

// assignOffsets decides where each rank's entries begin.
func (d *scatterList) assignOffsets(s *slot, ranks int) {
	p, l := &s.plan, int(s.slab.LocalExperts)
	d.first, d.weights = resize(d.first, ranks), d.weights[:0]
	if !s.params.preReduce {
		for r := range ranks {
			d.first[r] = p.first[r*l]
		}
		d.entries = resize(d.entries, len(p.jobs))
		return
	}
	clear(d.first)
	for _, j := range p.jobOf {
		if j >= 0 {
			d.first[p.jobs[j].Target]++
		}
	}
	total := int32(0)
	for r, n := range d.first {
		d.first[r] = total
		total += n
	}
	d.entries, d.weights = resize(d.entries, int(total)), resize(d.weights, int(total))
}

// add gives a rank one more expert of a token, and returns which entry it is.
func (d *scatterList) add(p *plan, token int32, r, localExperts int, expert uint16) int32 {
	at := p.first[r*localExperts]
	if n := d.num[r]; n == 0 || d.tokens[at+n-1] != token {
		d.tokens[at+n], d.lens[at+n] = token, 0
		d.num[r]++
	}
	entry := d.first[r] + d.fill[r]
	d.entries[entry] = expert
	d.fill[r]++
	d.lens[at+d.num[r]-1]++
	return entry
}

func (b *Buffer) scatterFlat(s *slot) {
	for r := range b.remote.ranks.All() {
		jobs := s.plan.of(r, 1)
		s.scatter.num[r] = int32(len(jobs))
		for i := range jobs {
			s.scatter.tokens[int(s.plan.first[r])+i] = jobs[i].Token
		}
	}
}

// leaseRows begins the next piece for a rank; false: there is no room now.
func (b *Buffer) leaseRows(s *slot, r int) bool {
	f, d := &s.remote[r].rows, &s.scatter
	total, l := int(d.num[r]), int(s.slab.LocalExperts)
	n := min(total-f.row, int(rowsFor(&s.slab, s.preReduceK(), b.remote.longest)))
	at := int(s.plan.first[r*l])
	entries := 0
	if !s.slab.Flat {
		for _, one := range d.lens[at+f.row:][:n] {
			entries += int(one)
		}
	}
	x := sectionsOf(&s.slab, s.params.preReduce, f.row == 0, int64(n), int64(entries))
	msg, ok := b.lease(r, x.size)
	if !ok {
		return false
	}
	b.remote.leases[r] = lease{msg: msg, parts: x, n: n, entries: entries}
	b.stamp(msg, protocol.MessageRows, s.index, s.op)
	h := rowsHead{params: s.params, total: uint32(total), first: uint32(f.row), rows: uint32(n), entries: uint32(entries)}
	h.put(msg, s.op)
	if f.row == 0 {
		putCounts(part(msg, x.counts), s.plan.counts[r*l:(r+1)*l])
	}
	if !s.slab.Flat {
		copy(part(msg, x.lens), d.lens[at+f.row:][:n])
		putEntries(part(msg, x.entries), d.entries[int(d.first[r])+f.entry:][:entries])
	}
	if s.params.preReduce {
		putWeights(part(msg, x.weights), d.weights[int(d.first[r])+f.entry:][:entries])
	}
	return true
}

// preReduceK is K of a pre-reduced operation, else 0.
func (s *slot) preReduceK() int64 {
	if s.params.preReduce {
		return int64(s.params.topK)
	}
	return 0
}

func putCounts(to []byte, counts []int32) {
	for i, n := range counts {
		binary.LittleEndian.PutUint32(to[4*i:], uint32(n))
	}
}

func putEntries(to []byte, entries []uint16) {
	for i, e := range entries {
		binary.LittleEndian.PutUint16(to[2*i:], e)
	}
}

func putWeights(to []byte, weights []float32) {
	for i, w := range weights {
		binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(w))
	}
}

// remotePlaceJobs returns the jobs that store the rows of all pieces, with their tokens
// beside them, and stores what these bring along.
func (b *Buffer) remotePlaceJobs(s *slot, ranks rankset.Set) []device.PlaceJob {
	jobs := b.remote.jobs[:0]
	for r := range ranks.All() {
		p, f := &b.remote.leases[r], &s.remote[r].rows
		b.scratch.targets[r] = device.Target{
			Rows: part(p.msg, p.parts.rows), Scales: part(p.msg, p.parts.scales), SrcInfo: part(p.msg, p.parts.tokens),
			RowsPerExpert: p.n,
		}
		at, first := int(s.plan.first[r*int(s.slab.LocalExperts)])+f.row, len(jobs)
		for i, token := range s.scatter.tokens[at:][:p.n] {
			jobs = append(jobs, device.PlaceJob{Token: token, Target: int32(r), Pos: int32(i)})
		}
		if s.slab.Flat {
			var to [layout.NumColumns][]byte
			for i := range to {
				to[i] = part(p.msg, p.parts.columns[i])
			}
			b.placeColumnsAt(s, r, &to, jobs[first:])
		}
	}
	b.remote.jobs = jobs
	return jobs
}

// postRows sends the pieces, and returns the ranks that have their last piece.
func (b *Buffer) postRows(s *slot, ranks rankset.Set) (done rankset.Set) {
	for r := range ranks.All() {
		p, f := &b.remote.leases[r], &s.remote[r].rows
		b.post(r, p.parts.size)
		b.count.bytesPlaced += uint64(p.n) * uint64(s.slab.RowBytes+s.slab.Groups()*4+4+s.slab.ColumnBytes())
		f.row += p.n
		f.entry += p.entries
		if *p = (lease{}); f.row == int(s.scatter.num[r]) {
			done = done.With(r)
			b.count.rowsTo[r] += uint64(b.rowsAt(s, r))
		}
	}
	return done
}

// settleRemote sends an operation without rows to a remote owner that has opened it. The
// words of the operation may be there only after that message.
func (b *Buffer) settleRemote(o *deferredWrite, r, j int) bool {
	shadow, err := b.slabOf(r, j, 0)
	if err != nil || !b.isMember() {
		return false
	}
	x := sectionsOf(&o.slab, o.params.preReduce, true, 0, 0)
	msg, ok := b.lease(r, x.size)
	if !ok {
		return false
	}
	b.stamp(msg, protocol.MessageRows, j, o.op)
	h := rowsHead{params: o.params}
	h.put(msg, o.op)
	clear(part(msg, x.counts))
	if !b.post(r, x.size) {
		return false
	}
	shadow.Word(layout.Done(b.self)).Store(protocol.Counted(o.op, 0, true))
	return true
}
