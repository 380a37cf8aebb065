package telemetry

import (
	"math/bits"

	"github.com/moewire/moewire/core/group/membership"
)

// Place says which rank writes an area, and where the area lies.
type Place struct {
	Rank, NumRanks, PID, NumSlots int
	Group                         uint64
	AreaOff, WaitsForOff, BeatOff int64 // in the control region
	Recording                     bool
}

// Open writes the header, the magic last. The area is zeroed memory.
func (a Area) Open(p Place) {
	flags := 0
	if p.Recording {
		flags = flagRecording
	}
	for i, v := range [...]uint64{
		pair(formatVersion, flags), pair(p.Rank, p.NumRanks), pair(p.PID, p.NumSlots), p.Group, 0,
		pair(RecordBytes, Capacity), pair(ringOff, expertsOff),
		pair(int(p.AreaOff), int(p.WaitsForOff)), pair(int(p.BeatOff), NumBuckets),
	} {
		a.word(wordFormat + i).Store(v)
	}
	a.word(wordLinks).Store(pair(linksOff, LinkBytes))
	a.word(wordMagic).Store(Magic)
}

// Add puts an ended operation into ring, totals and histograms.
func (a Area) Add(r *Record) {
	a.push(r)
	at := kindsAt + int(r.Kind-Dispatch)*kindWords
	a.add(at+totalDone+int(r.Outcome), 1)
	if r.Outcome != Done {
		return
	}
	a.addTimes(at, r)
	a.add(at+totalBytes, r.Bytes)
	a.add(at+totalRowsOut, uint64(r.RowsOut))
	a.add(at+totalRowsIn, uint64(r.RowsIn))
	a.add(at+totalTokens, uint64(r.Tokens))
	if r.Last >= 0 {
		a.add(at+lastAt+int(r.Last), 1)
	}
}

// Skip leaves out n sequence numbers for records that were not kept.
func (a Area) Skip(n uint64) { a.add(wordNext, n) }

func (a Area) addTimes(at int, r *Record) {
	total := positive(r.Time())
	a.add(at+totalTime, total)
	a.add(at+totalWait, positive(r.Wait))
	a.add(at+totalSend, positive(r.Sent-max(r.Place, r.Start)))
	a.add(at+totalWork, positive(r.End-max(r.Seen, r.Sent)))
	if w := a.word(at + totalMax); total > w.Load() {
		w.Store(total)
	}
	a.add(at+timeAt+bucket(total), 1)
	a.add(at+waitAt+bucket(positive(r.Wait)), 1)
}

func positive(ns int64) uint64 { return uint64(max(ns, 0)) }

func bucket(ns uint64) int { return min(bits.Len64(ns), NumBuckets-1) }

// AddWait adds ns of waiting for a rank.
func (a Area) AddWait(k Kind, rank int, ns int64) {
	a.add(kindsAt+int(k-Dispatch)*kindWords+waitForAt+rank, positive(ns))
}

// AddSent adds rows that this rank has sent to a rank; AddReceived adds rows from it.
func (a Area) AddSent(rank int, rows uint64)     { a.add(rowsToAt+rank, rows) }
func (a Area) AddReceived(rank int, rows uint64) { a.add(rowsFromAt+rank, rows) }

// AddRows adds rows that arrived for a local expert.
func (a Area) AddRows(expert int, rows uint64) {
	w := a.expert(expert)
	w.Store(w.Load() + rows)
}

// SetExperts stores the number of local experts.
func (a Area) SetExperts(n int) { a.set(wordExperts, uint64(n)) }

// SetCurrent shows the operation that is in flight; ClearCurrent shows that it has ended.
func (a Area) SetCurrent(k Kind, op uint64, since int64) {
	a.word(wordSince).Store(uint64(since))
	a.word(wordCurrent).Store(op<<8 | uint64(k))
}

// ClearCurrent says that the operation has ended, if it is the one shown.
func (a Area) ClearCurrent(k Kind, op uint64) {
	if w := a.word(wordCurrent); w.Load() == op<<8|uint64(k) {
		w.Store(0)
	}
}

// HideCurrent says that no operation is in flight.
func (a Area) HideCurrent() { a.set(wordCurrent, 0) }

// SetMemory stores how much memory this rank has made, in bytes.
func (a Area) SetMemory(slabs int, slabBytes, present uint64) {
	a.set(wordSlabs, uint64(slabs))
	a.set(wordSlabSize, slabBytes)
	a.set(wordPresent, present)
}

// SetEpoch stores the epoch that this rank is in.
func (a Area) SetEpoch(epoch membership.Epoch) { a.set(wordEpoch, uint64(epoch)) }

// SetLeft records, before this rank is out of an epoch's member set, that it leaves by
// itself.
func (a Area) SetLeft(epoch membership.Epoch) { a.set(wordLeft, uint64(epoch)+1) }

// LeftOffset is where in an area SetLeft writes. A reader that has a copy of only that word
// can ask HasLeft.
func LeftOffset() int64 { return wordLeft * 8 }

// SetClosed records that this buffer takes no more calls.
func (a Area) SetClosed() { a.word(wordClosed).Store(1) }

// SetViolations stores how often a word was found that no rank can have stored.
func (a Area) SetViolations(n uint64) { a.set(wordViolations, n) }

// SetEvents stores how many events were recorded.
func (a Area) SetEvents(n uint64) { a.word(wordEvents).Store(n) }
