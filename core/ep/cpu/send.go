package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// send places rows at every owner that has opened the operation by now. In
// steady state that is all of them at once: each row is read and cast once.
func (b *Buffer) send(s *slot) error {
	ready, err := b.openOwners(s)
	if err != nil || ready.Empty() {
		return err
	}
	// After `open` and before the first write: are we still a member?
	if !b.isMember() {
		return ep.ErrFenced
	}
	if ready.Has(b.self) {
		b.describe(s)
	}
	remote := b.remoteOf(ready)
	if ready = ready.Minus(remote); b.exchanges(s) && !ready.Empty() {
		ready = b.exchangeRowOrder(s, ready) // remote owners take our rows before they have an order
	}
	if ready.Or(remote).Empty() {
		return nil
	}
	b.rec.placing(s)
	remote = b.leaseRemote(s, remote)
	rows := b.reserve(s, ready)
	b.place(s, rows, remote)
	b.count.bytesPlaced += b.placedBytes(s, rows)
	for i := range b.ranks { // peers first: they can go on meanwhile
		if r := (b.self + 1 + i) % b.ranks; ready.Has(r) {
			b.publishTo(s, r, rows.Has(r))
		}
	}
	remote = b.sendRemote(s, remote)
	ready = ready.Or(remote)
	s.placed = s.placed.Or(rows.Or(remote))
	s.unsent = s.unsent.Minus(ready)
	s.sent = s.sent.Or(ready)
	return nil
}

// finishSend notes that every owner has its rows or is out.
func (b *Buffer) finishSend(s *slot) {
	b.rec.sent(s, kindDispatch)
	switch {
	case s.params.use.OneWay(): // no combine comes
	case s.params.preReduce:
		s.plan.locateRuns(&s.slab, s.weights, b.remoteOf(b.all))
	default:
		s.plan.locate(&s.slab)
	}
	s.dispatch.args.X, s.dispatch.args.TopkIdx, s.dispatch.args.Listed = nil, nil, nil // no longer ours
	s.dispatch.args.TopkWeights, s.dispatch.args.Extra = nil, [protocol.NumExtras][]byte{}
	s.located = true
}

// openOwners finds the owners that have opened s.op, and their slabs.
func (b *Buffer) openOwners(s *slot) (ready rankset.Set, _ error) {
	for r := range s.unsent.All() {
		id, open := b.openFor(r, s.index, s.op)
		if !open {
			continue
		}
		slab, err := b.slabOf(r, s.index, id)
		switch {
		case err != nil:
			return rankset.Set{}, err
		case slab == nil:
			continue // its owner will be out
		}
		s.dst[r] = slab
		ready = ready.With(r)
	}
	return ready, nil
}

// describe fills in the result; our own slab is open for s.op.
func (b *Buffer) describe(s *slot) {
	lay, res := &s.slab, &s.dispatch.res
	s.shown, s.shownFor = *lay, s.op
	res.Op, res.Slab, res.Memory = s.op, s.own.seg, s.own.memory
	res.RecvX = bytesOf(s.own.seg, lay.Rows())
	res.SrcInfo = bytesOf(s.own.seg, lay.SrcInfo())
	res.CombineX = bytesOf(s.own.seg, lay.Y())
	res.Scales = bytesOf(s.own.seg, lay.Scales())
	if res.Flat = lay.Flat; res.Flat {
		for i := range lay.Columns {
			res.Columns[i] = bytesOf(s.own.seg, lay.Column(i))
		}
	}
}

func bytesOf(slab domain.Segment, r layout.Region) []byte { return slab.Bytes(r.Off, r.Bytes) }

// reserve finds where our rows begin. It returns the owners with room for
// all of our rows. An owner that works on another shape may have too little room;
// then it gets no rows from us.
func (b *Buffer) reserve(s *slot, ready rankset.Set) (fits rankset.Set) {
	if b.exchanges(s) {
		return b.assigned(s, ready)
	}
	return b.take(s, ready)
}

// take finds places for our rows at owners.
func (b *Buffer) take(s *slot, ready rankset.Set) (fits rankset.Set) {
	for r := range ready.All() {
		if b.takeAt(s, r) {
			fits = fits.With(r)
		}
	}
	return fits
}

// takeAt adds our rows to the counters of owner r; the old values are where our rows
// begin. Every value of a counter is compared with its bounds before it is used.
func (b *Buffer) takeAt(s *slot, r int) bool {
	p, l, capacity := &s.plan, int(s.slab.LocalExperts), uint64(s.slab.RowsPerExpert)
	if n := s.dst[r].SizeBytes(); n < s.slab.SizeBytes {
		b.lack(s, violation{r, inSlot("the bytes of slab", s.index), uint64(n), fmt.Sprintf("%d and more", s.slab.SizeBytes)})
		return false
	}
	for i := range l {
		n := uint64(p.counts[r*l+i])
		if n == 0 {
			continue
		}
		begin := s.dst[r].Word(layout.Counter(i)).Add(n) - n
		if !protocol.Fits(begin, n, capacity) {
			b.lack(s, violation{r, fmt.Sprintf("counter[%d] in slot %d", i, s.index), begin, fmt.Sprintf("%d less %d rows", capacity, n)})
			return false
		}
		p.begin[r*l+i] = int32(begin)
	}
	return true
}

// place stores the rows for the given owners, and fills the messages that were
// leased for remote ones: each row is cast once for all of them.
func (b *Buffer) place(s *slot, owners, remote rankset.Set) {
	p, l := &s.plan, int(s.slab.LocalExperts)
	for r := range owners.All() {
		p.position(r, l)
		b.prefault(s, r)
		b.scratch.targets[r] = target(s.dst[r], &s.slab)
	}
	jobs := b.jobsFor(s, owners)
	if !remote.Empty() {
		jobs = append(b.remotePlaceJobs(s, remote), jobs...)
		b.remote.jobs = jobs
	}
	b.placeJobs(s, jobs)
	b.placeColumns(s, owners)
}

// placeJobs stores rows of our tokens in the targets.
func (b *Buffer) placeJobs(s *slot, jobs []device.PlaceJob) {
	b.scratch.place = device.PlaceBatch{
		X: s.dispatch.args.X[:int(s.params.tokens)*int(s.slab.Hidden)*2], Hidden: int(s.slab.Hidden), RowType: s.slab.RowType,
		Targets: b.scratch.targets, Jobs: jobs,
	}
	b.kern.Place(&b.scratch.place)
	b.scratch.place.X = nil
}

// jobsFor returns the jobs for some owners: all of them, without copying, in
// the common case.
func (b *Buffer) jobsFor(s *slot, owners rankset.Set) []device.PlaceJob {
	if owners == s.planned {
		return s.plan.jobs
	}
	b.scratch.jobs = b.scratch.jobs[:0]
	for r := range owners.All() {
		jobs := s.plan.of(r, int(s.slab.LocalExperts))
		b.scratch.jobs = append(b.scratch.jobs, jobs...)
	}
	return b.scratch.jobs
}

func target(slab domain.Segment, lay *layout.Slab) device.Target {
	return device.Target{
		Rows: bytesOf(slab, lay.Rows()), Scales: bytesOf(slab, lay.Scales()), SrcInfo: bytesOf(slab, lay.SrcInfo()),
		RowsPerExpert: int(lay.RowsPerExpert),
	}
}

// publishTo tells owner r that all of our rows are there.
func (b *Buffer) publishTo(s *slot, r int, withRows bool) {
	l := int(s.slab.LocalExperts)
	counts, begin := s.plan.counts[r*l:(r+1)*l], s.plan.begin[r*l:(r+1)*l]
	if !withRows {
		counts, begin = nil, nil
	}
	b.publish(s.dst[r], r, s.op, &s.params, &s.slab, counts, begin)
	for _, n := range counts {
		b.count.rowsTo[r] += uint64(n)
	}
}

// publish writes layout, params and, last, arrive in an owner's slab. counts
// and begin are per local expert of the owner, nil for no rows at all.
func (b *Buffer) publish(slab domain.Segment, r int, op uint64, p *params, lay *layout.Slab, counts, begin []int32) {
	b.publishFor(b.self, slab, op, p, lay, counts, begin)
	b.dom.Wake(r)
}

// publishFor is publish on behalf of a source.
func (b *Buffer) publishFor(source int, slab domain.Segment, op uint64, p *params, lay *layout.Slab, counts, begin []int32) {
	if slab.SizeBytes() >= lay.SizeBytes { // else the owner reports the mismatch
		for l := range int(lay.LocalExperts) {
			v := uint64(0)
			if counts == nil {
				v = protocol.Withdrawn
			} else if counts[l] > 0 {
				v = uint64(begin[l])<<32 | uint64(counts[l])
			}
			protocol.Ensure(slab.Word(lay.Layout(int64(l), int64(source))), v)
		}
	}
	p.store(slab, source, op)
	slab.Word(layout.Arrive(source)).Store(protocol.Sealed(op, source))
}

// placedBytes counts rows, scales, src_info and columns.
func (b *Buffer) placedBytes(s *slot, owners rankset.Set) (n uint64) {
	l := int(s.slab.LocalExperts)
	row := uint64(s.slab.RowBytes + s.slab.Groups()*4 + 4 + s.slab.ColumnBytes())
	for r := range owners.All() {
		for _, c := range s.plan.counts[r*l : (r+1)*l] {
			n += uint64(c) * row
		}
	}
	return n
}

// prefault makes present what this operation will probably touch at owner r:
// each block's uniform share of the places of all tokens, a quarter more for
// skew.
func (b *Buffer) prefault(s *slot, r int) {
	lay := &s.slab
	tokens := int64(s.params.tokens) * lay.NumRanks * int64(s.plan.width)
	blocks := lay.LocalExperts * lay.NumRanks
	share := min((tokens*5/4+blocks-1)/blocks, lay.RowsPerExpert)
	w := &s.warm[r]
	seg := s.dst[r]
	if w.seg == seg && w.shape == lay.Shape && w.rows >= share {
		return
	}
	*w = warmth{seg, lay.Shape, share}
	seg.Prefault(0, layout.HeaderBytes)
	for l := range lay.LocalExperts {
		lay.Head(l, share, func(r layout.Region) { seg.Prefault(r.Off, r.Bytes); b.rec.present += uint64(r.Bytes) })
	}
}
