package cuda

import (
	"os"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// recorder puts what the device counts into this rank's control page, where all readers
// look, also those of other processes. Buffer.stateMu guards it.
type recorder struct {
	on       bool
	area     telemetry.Area
	clock    telemetry.Clock
	device   deviceClock
	counters device.Counters
	folded   folded
	copied   uint64 // bytes, by combines
	events   telemetry.Events
	known    rankset.Set // members with no loss reported yet
	paused   bool        // the device forgets what it has counted
	ended    bool        // the buffer is being closed: no more folds
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
	r.on, r.clock, r.counters = !b.cfg.NoRecord, telemetry.NewClock(), b.engine.Counters()
	r.area = telemetry.At(b.dom.Control(b.self), layout.Record())
	p := telemetry.Place{
		Rank: b.self, NumRanks: b.ranks, PID: os.Getpid(), NumSlots: len(b.slots),
		AreaOff: layout.Record(), WaitsForOff: layout.WaitsFor(), BeatOff: layout.Beat(), Recording: r.on,
	}
	if g, ok := b.dom.(interface{ GroupID() uint64 }); ok {
		p.Group = g.GroupID()
	}
	r.area.Open(p)
	r.area.SetEpoch(b.epoch)
	if r.on {
		bytes := uint64(b.cfg.NumSlots) * uint64(b.cfg.engine(b.self, b.ranks).SlabBytes)
		r.area.SetMemory(b.cfg.NumSlots, bytes, 0)
	}
}

// fold moves what the device has counted since the last time. The caller holds
// Buffer.stateMu.
func (b *Buffer) fold() {
	r := &b.rec
	if !r.on || r.ended || r.paused {
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
		r.area.Skip(oldest - r.folded.records)
		r.folded.records = oldest
	}
	r.seeRecords(latest)
	for ; r.folded.records < latest; r.folded.records++ {
		if rec, ok := r.counters.Record(r.folded.records); ok {
			r.add(&rec, epoch)
		} else {
			r.area.Skip(1)
		}
	}
}

// seeRecords comes before any of the records is added: the latest tells most about the
// clock, and all get their times by the same clock.
func (r *recorder) seeRecords(latest uint64) {
	for n := r.folded.records; n < latest; n++ {
		if rec, ok := r.counters.Record(n); ok {
			r.device.see(rec.End, r.clock.Now())
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
	r.area.SetEpoch(epoch)
	r.area.Add(&rec)
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
		r.area.AddSent(q, since(&f.rowsTo[q], r.counters.RowsTo(q)))
		r.area.AddReceived(q, since(&f.rowsFrom[q], r.counters.RowsFrom(q)))
		r.area.AddWait(telemetry.Dispatch, q, int64(since(&f.waitFor[0][q], r.counters.WaitFor(false, q))))
		r.area.AddWait(telemetry.Combine, q, int64(since(&f.waitFor[1][q], r.counters.WaitFor(true, q))))
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
			r.area.AddRows(l, rows)
		}
	}
	if n > 0 {
		r.area.SetExperts(n)
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
		r.area.HideCurrent()
		return
	}
	if !r.device.known { // nothing has ended yet; that will tell better
		r.device.see(a.Since, r.clock.Now())
	}
	r.area.SetCurrent(kindOf(a.Combine), a.Op, r.device.at(a.Since))
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
