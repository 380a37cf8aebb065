package cuda

import (
	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// recorder puts what the device counts into this rank's control page, where all readers
// look, also those of other processes. Buffer.stateMu guards it.
type recorder struct {
	ep.Journal
	on       bool
	device   deviceClock
	counters device.Counters
	folded   folded
	copied   uint64      // bytes, by combines
	known    rankset.Set // members with no loss reported yet
	paused   bool        // the device forgets what it has counted
}

// folded is how much of the device's counters the area has.
type folded struct {
	records          uint64
	rowsTo, rowsFrom [rankset.MaxRanks]uint64
	waitFor          [2][rankset.MaxRanks]uint64
	experts          []uint64
}

// open begins to record.
func (r *recorder) open(b *Buffer) {
	r.on, r.counters = !b.cfg.NoRecord, b.engine.Counters()
	r.Open(b.dom, &b.cfg.Config, b.epoch)
	if r.on {
		bytes := uint64(b.cfg.NumSlots) * uint64(b.cfg.engine(b.self, b.ranks).SlabBytes)
		r.Area.SetMemory(b.cfg.NumSlots, bytes, 0)
	}
}

// fold moves what the device has counted since the last time. The caller holds
// Buffer.stateMu.
func (b *Buffer) fold() {
	r := &b.rec
	if !r.on || r.Ended || r.paused {
		return
	}
	r.foldRecords(b.epoch)
	r.foldRanks(b.ranks)
	r.foldExperts()
	r.showCurrent()
}

func (r *recorder) foldRecords(epoch membership.Epoch) {
	latest := r.counters.NumRecords()
	if latest == r.folded.records {
		return
	}
	if oldest := latest - min(latest, protocol.RecordRing-1); r.folded.records < oldest {
		r.Area.Skip(oldest - r.folded.records)
		r.folded.records = oldest
	}
	r.seeRecords(latest)
	for ; r.folded.records < latest; r.folded.records++ {
		if rec, ok := r.counters.Record(r.folded.records); ok {
			r.add(&rec, epoch)
		} else {
			r.Area.Skip(1)
		}
	}
}

// seeRecords comes before any of the records is added: the latest tells most about the
// clock, and all get their times by the same clock.
func (r *recorder) seeRecords(latest uint64) {
	for n := r.folded.records; n < latest; n++ {
		if rec, ok := r.counters.Record(n); ok {
			r.device.see(rec.End, r.Clock.Now())
		}
	}
}

// add puts one operation into the area.
func (r *recorder) add(from *device.Record, epoch membership.Epoch) {
	d := &r.device
	rec := telemetry.Record{
		Kind: kindOf(from.IsCombine()), Epoch: epoch, Last: int16(from.Last()), Combine: uint32(from.Combine()),
		Tokens: uint32(from.Tokens), Op: from.Op,
		Start: d.at(from.Start), Place: d.at(from.Place), Sent: d.at(from.Sent), Resume: d.at(from.Resume),
		Seen: d.at(from.Seen), End: d.at(from.End), Wait: int64(from.Wait), LastAlone: int64(from.Alone),
		RowsOut: uint32(from.RowsOut), RowsIn: uint32(from.RowsIn), Bytes: from.Bytes + from.Copied, Missing: rankset.FromWord(from.Missing),
	}
	if from.HasFailed() {
		rec.Outcome = telemetry.Failed
	} else {
		r.copied += from.Copied
	}
	r.Area.SetEpoch(epoch)
	r.Area.Add(&rec)
}

func kindOf(combine bool) telemetry.Kind {
	if combine {
		return telemetry.Combine
	}
	return telemetry.Dispatch
}

// foldRanks moves what is counted by rank.
func (r *recorder) foldRanks(ranks int) {
	f := &r.folded
	for q := range ranks {
		r.Area.AddSent(q, since(&f.rowsTo[q], r.counters.RowsTo(q)))
		r.Area.AddReceived(q, since(&f.rowsFrom[q], r.counters.RowsFrom(q)))
		r.Area.AddWait(telemetry.Dispatch, q, int64(since(&f.waitFor[0][q], r.counters.WaitFor(false, q))))
		r.Area.AddWait(telemetry.Combine, q, int64(since(&f.waitFor[1][q], r.counters.WaitFor(true, q))))
	}
}

// foldExperts moves the load of the local experts.
func (r *recorder) foldExperts() {
	n := min(r.counters.NumExperts(), telemetry.MaxExperts)
	for len(r.folded.experts) < n {
		r.folded.experts = append(r.folded.experts, 0)
	}
	for l := range r.folded.experts {
		if rows := since(&r.folded.experts[l], r.counters.Expert(l)); rows != 0 {
			r.Area.AddRows(l, rows)
		}
	}
	if n > 0 {
		r.Area.SetExperts(n)
	}
}

// since returns by how much a total has grown, and remembers the total.
func since(before *uint64, now uint64) uint64 {
	grown := now - *before
	*before = now
	return grown
}

// showCurrent shows which operation is under way.
func (r *recorder) showCurrent() {
	a, ok := r.counters.Current()
	if !ok {
		r.Area.HideCurrent()
		return
	}
	if !r.device.known { // nothing has ended yet; that will tell better
		r.device.see(a.Since, r.Clock.Now())
	}
	r.Area.SetCurrent(kindOf(a.Combine), a.Op, r.device.at(a.Since))
}

// pauseRecording comes before the engine counts from 0 again, and
// resumeRecording after it: between the two nothing is folded.
func (b *Buffer) pauseRecording() {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	b.fold()
	b.rec.paused = true
}

func (b *Buffer) resumeRecording(forgotten bool) {
	b.stateMu.Lock()
	defer b.stateMu.Unlock()
	if forgotten {
		b.rec.folded = folded{experts: make([]uint64, len(b.rec.folded.experts))}
	}
	b.rec.paused = false
}
