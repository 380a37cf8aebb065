package cpu

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/telemetry"
)

// The area must fit in the control region.
const _ = uint(layout.RecordBytes - telemetry.AreaBytes)

// recorder follows the operations of one buffer and records them in this
// rank's control region. All methods want Buffer.mu held; they allocate
// nothing, and do nothing when recording is off.
type recorder struct {
	ep.Journal
	b           *Buffer
	on          bool
	inFlight    [protocol.MaxSlotsCPU][2]inFlight // by slot; dispatch, combine
	readerWaits [protocol.MaxSlotsCPU]delay       // waits for the readers of a combine, which no record shows
	before      counted                           // the counters after the last step
	present     uint64                            // bytes made present ahead of use
	slabs       int
}

// counted are the counters that a step may raise, only for its own operation.
type counted struct{ placed, reduced, copied, rowsReduced, rowsReceived, present uint64 }

// inFlight is one operation that has not ended.
type inFlight struct {
	delay
	open    bool
	rec     telemetry.Record
	changed int64 // when a rank last went out of missing
	handed  bool  // went back to its caller after sending
}

// delay is a wait that may have to be reported to a person.
type delay struct {
	missing rankset.Set // ranks that are waited for now
	since   int64       // when that wait began; 0: no wait
	slow    int64       // ns of waiting at which to complain next
}

// open begins to record, for a buffer that is complete.
func (r *recorder) open(b *Buffer) {
	r.b, r.on = b, !b.cfg.NoRecord
	r.Open(b.dom, &b.cfg, b.epoch)
}

// inFlightOf returns the record of an operation; nil for what is not recorded.
func (r *recorder) inFlightOf(s *slot, k kind) *inFlight {
	if k != kindDispatch && k != kindCombine {
		return nil
	}
	return &r.inFlight[s.index][k]
}

// delay returns the wait of a task; nil: it waits for no rank, or is over.
func (r *recorder) delay(t task) *delay {
	d := &r.readerWaits[t.s.index]
	if f := r.inFlightOf(t.s, t.kind); f != nil {
		if d = &f.delay; !f.open {
			return nil
		}
	}
	if d.since == 0 || t.s.call(t.kind).st != t.st {
		return nil
	}
	return d
}

func kindOf(k kind) telemetry.Kind { return telemetry.Dispatch + telemetry.Kind(k) }

// begin starts the record of an operation that has just taken its number.
func (r *recorder) begin(s *slot, k kind) {
	if !r.on {
		return
	}
	f := r.inFlightOf(s, k)
	if f.open { // it was given up, and the recorder was not told
		r.finish(s, f, telemetry.Cancelled)
	}
	*f = inFlight{open: true, delay: r.newDelay()}
	f.rec = telemetry.Record{
		Kind: kindOf(k), Epoch: r.b.epoch, Last: -1, Tokens: uint32(s.params.tokens), Op: s.op, Start: r.Clock.Now(),
	}
	if k == kindCombine {
		f.rec.Combine = uint32(s.combines) + 1
	}
	r.Area.SetCurrent(f.rec.Kind, s.op, f.rec.Start)
}

// beginReaderWait starts the wait for the readers of a combine.
func (r *recorder) beginReaderWait(s *slot) { r.readerWaits[s.index] = r.newDelay() }

func (r *recorder) newDelay() delay { return delay{slow: int64(r.b.cfg.SlowAfter)} }

// placing notes that rows are about to be stored.
func (r *recorder) placing(s *slot) {
	if f := &r.inFlight[s.index][kindDispatch]; f.open {
		now := r.Clock.Now()
		r.endWait(f, now)
		if f.rec.Place == 0 {
			f.rec.Place = now
		}
	}
}

// sent notes that all rows of this rank are there for the others.
func (r *recorder) sent(s *slot, k kind) {
	if f := r.inFlightOf(s, k); f.open {
		now := r.Clock.Now()
		r.endWait(f, now)
		f.rec.Sent = now
	}
}

// seen notes that all rows of the others are there.
func (r *recorder) seen(s *slot, k kind) {
	if f := r.inFlightOf(s, k); f.open {
		now := r.Clock.Now()
		r.endWait(f, now)
		f.rec.Seen = now
		if f.handed && f.rec.Resume == 0 {
			f.rec.Resume = now
		}
		if k == kindDispatch {
			r.received(s)
		}
	}
}

// step notes what one step of an operation came to: it waits, or has ended,
// or goes back to its caller.
func (r *recorder) step(t task, waiting rankset.Set, reached bool) {
	if !r.on {
		return
	}
	f := r.inFlightOf(t.s, t.kind)
	if f == nil {
		r.readerWaits[t.s.index].wait(waiting, r.Clock)
		return
	}
	r.attribute(&f.rec)
	switch {
	case !f.open: // it failed in this step
	case t.st.State() == op.Done:
		r.finish(t.s, f, telemetry.Done)
	case reached:
		f.handed = true
	case waiting != f.missing && !t.s.call(t.kind).behind:
		r.wait(f, waiting)
	}
}

// attribute gives the step's work to its operation: steps are the only ones
// to raise these counters.
func (r *recorder) attribute(rec *telemetry.Record) {
	c := &r.b.count
	now := counted{c.bytesPlaced, c.bytesReduced, c.bytesCopied, c.rowsReduced, c.rowsReceived, r.present}
	if now == r.before {
		return
	}
	rec.Bytes += now.placed - r.before.placed + now.reduced - r.before.reduced + now.copied - r.before.copied
	rec.RowsOut += uint32(now.rowsReduced - r.before.rowsReduced)
	rec.RowsIn += uint32(now.rowsReceived - r.before.rowsReceived)
	rec.Present += now.present - r.before.present
	r.before = now
}

// wait notes which ranks the operation waits for, and when that began.
func (d *delay) wait(waiting rankset.Set, clock telemetry.Clock) {
	if d.since == 0 {
		d.since = clock.Now()
	}
	d.missing = waiting
}

// wait notes that the set of ranks waited for has changed.
func (r *recorder) wait(f *inFlight, waiting rankset.Set) {
	now := r.Clock.Now()
	if f.since == 0 {
		f.since, f.changed = now, now
		if f.rec.Sent != 0 && f.rec.Resume == 0 {
			f.rec.Resume = now
		}
	}
	if gone := f.missing.Minus(waiting); !gone.Empty() {
		r.came(f, gone, now)
	}
	f.missing = waiting
	f.rec.Missing = f.rec.Missing.Or(waiting)
}

// endWait records a wait that is over.
func (r *recorder) endWait(f *inFlight, now int64) {
	if f.since == 0 {
		return
	}
	f.rec.Last = int16(lowest(f.missing))
	f.rec.LastAlone = now - f.changed
	f.rec.Wait += now - f.since
	r.came(f, f.missing, now)
	f.missing, f.since = rankset.Set{}, 0
}

// came adds, for each of the ranks, how long it was waited for.
func (r *recorder) came(f *inFlight, ranks rankset.Set, now int64) {
	for rank := range ranks.All() {
		r.Area.AddWait(f.rec.Kind, rank, now-f.since)
	}
	f.changed = now
}

// abandon ends the records of a slot if its calls have ended otherwise.
func (r *recorder) abandon(s *slot, state op.State) {
	outcome := telemetry.Failed
	if state == op.Cancelled {
		outcome = telemetry.Cancelled
	}
	for k := range r.inFlight[s.index] {
		if f := &r.inFlight[s.index][k]; f.open {
			r.attribute(&f.rec)
			r.finish(s, f, outcome)
		}
	}
}

func (r *recorder) finish(s *slot, f *inFlight, outcome telemetry.Outcome) {
	now := r.Clock.Now()
	r.endWait(f, now)
	f.open, f.rec.End, f.rec.Outcome = false, now, outcome
	if f.rec.Kind == telemetry.Dispatch && outcome == telemetry.Done {
		f.rec.RowsOut = r.rowsSent(s)
	}
	r.Area.SetEpoch(f.rec.Epoch)
	r.Area.SetMemory(r.slabs, r.b.count.slabBytes, r.present)
	r.Area.ClearCurrent(f.rec.Kind, f.rec.Op)
	r.Area.Add(&f.rec)
}

// rowsSent adds the rows of an ended dispatch to the totals of their owners.
func (r *recorder) rowsSent(s *slot) (rows uint32) {
	l := int(s.slab.LocalExperts)
	for owner := range s.sent.All() {
		n := s.plan.first[(owner+1)*l] - s.plan.first[owner*l]
		r.Area.AddSent(owner, uint64(n))
		rows += uint32(n)
	}
	return rows
}

// received adds the rows of a dispatch to the totals by expert and by source. A flat row
// belongs to no expert.
func (r *recorder) received(s *slot) {
	l := int(s.slab.LocalExperts)
	if !s.params.flat {
		r.Area.SetExperts(l)
	}
	var from [rankset.MaxRanks]uint64
	for e := range l {
		if s.dispatch.args.RecvCount[e] == 0 {
			continue
		}
		total := uint64(0)
		for source := range r.b.ranks { // those that are not counted have no rows
			n := uint64(s.dispatch.args.LayoutRange[e*r.b.ranks+source]) & (1<<32 - 1)
			from[source] += n
			total += n
		}
		if !s.params.flat {
			r.Area.AddRows(e, total)
		}
	}
	for source := range r.b.ranks {
		r.Area.AddReceived(source, from[source])
	}
}
