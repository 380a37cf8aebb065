package cuda

import (
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

const countersBytes = uint64(unsafe.Sizeof(counters{}))

// A record is so many words.
const _ = uint(protocol.RecordWords*8-unsafe.Sizeof(Record{})) + uint(unsafe.Sizeof(Record{})-protocol.RecordWords*8)

// Words of the counters, for Counters.Each.
const (
	countersRowsTo   = unsafe.Offsetof(counters{}.RowsTo) / 8
	countersRowsFrom = unsafe.Offsetof(counters{}.RowsFrom) / 8
	countersWaitFor  = unsafe.Offsetof(counters{}.WaitFor) / 8
	countersExperts  = uintptr(countersBytes) / 8
)

// Counters reads what the device has counted since the engine began, or since the
// latest Restart. It never waits for the device, which may be counting: numbers
// of an operation that has just ended may be there in part. The zero value has
// nothing. Not for use after Engine.Close.
type Counters struct {
	words []uint64
	ranks int
	local int
}

// Counters of the engine; its zero value with Config.NoCounters.
func (e *Engine) Counters() Counters {
	if e.counts == nil {
		return Counters{}
	}
	return Counters{e.counts.Words(), e.cfg.NumRanks, e.cfg.localExperts()}
}

func (t Counters) at() *counters { return (*counters)(unsafe.Pointer(unsafe.SliceData(t.words))) }

// NumRecords is how many operations have ended.
func (t Counters) NumRecords() uint64 { return atomic.LoadUint64(&t.at().NumRecords) }

// Record returns the n-th record, counted from 0; false: a later one has taken
// its place, or may be doing so.
func (t Counters) Record(n uint64) (r Record, ok bool) {
	from := (*[protocol.RecordWords]uint64)(unsafe.Pointer(&t.at().Ring[n%protocol.RecordRing]))
	to := (*[protocol.RecordWords]uint64)(unsafe.Pointer(&r))
	for i := range from {
		to[i] = atomic.LoadUint64(&from[i])
	}
	return r, t.NumRecords()-n < protocol.RecordRing
}

// RowsTo is how many rows a rank was sent, RowsFrom how many came of it.
func (t Counters) RowsTo(rank int) uint64   { return t.word(countersRowsTo, rank) }
func (t Counters) RowsFrom(rank int) uint64 { return t.word(countersRowsFrom, rank) }

// WaitFor is for how long a rank was waited for, in ns: by dispatches, or by
// combines.
func (t Counters) WaitFor(combines bool, rank int) uint64 {
	at := countersWaitFor
	if combines {
		at += rankset.MaxRanks
	}
	return t.word(at, rank)
}

// NumExperts is how many local experts the latest dispatch had, without flat
// ones; Expert how many rows one of them was sent.
func (t Counters) NumExperts() int {
	return int(min(atomic.LoadUint64(&t.at().NumExperts), uint64(t.local)))
}
func (t Counters) Expert(l int) uint64 { return t.word(countersExperts, l) }

func (t Counters) word(at uintptr, i int) uint64 {
	return atomic.LoadUint64(&t.words[at+uintptr(i)])
}

// Activity is what an operation does that has not ended.
type Activity struct {
	Combine bool // else a dispatch
	Readers bool // it waits for readers of what was combined before
	Op      uint64
	Since   uint64 // ns of the device's clock
}

// Current returns what is under way; false: nothing is.
func (t Counters) Current() (a Activity, ok bool) {
	word := atomic.LoadUint64(&t.at().Current)
	kind := word & 0xff
	return Activity{
		Combine: kind == protocol.RecordCombine, Readers: kind == protocol.RecordReaders, Op: word >> 8, Since: atomic.LoadUint64(&t.at().Since),
	}, word != 0
}

// IsCombine, HasFailed, Last and Combine read Record.Kind. Last is the rank that
// came last; -1: there was no wait. Combine is 1 for the first one of a handle,
// 0 for a dispatch.
func (r *Record) IsCombine() bool { return r.Kind&0xffff == protocol.RecordCombine }
func (r *Record) HasFailed() bool { return r.Kind>>16&1 != 0 }
func (r *Record) Last() int       { return int(r.Kind>>32&0xff) - 1 }
func (r *Record) Combine() int    { return int(r.Kind >> 40) }

// forgetCounters is for a device that does nothing.
func (e *Engine) forgetCounters() {
	if e.counts != nil {
		clear(e.counts.Words())
	}
}
