package telemetry

import "github.com/moewire/moewire/core/group/membership"

// Totals are what all operations of one kind have cost on one rank.
type Totals struct {
	Done      uint64   `json:"count"`
	Failed    uint64   `json:"failed"`
	Cancelled uint64   `json:"cancelled"`
	Time      uint64   `json:"time_ns"` // in calls
	Send      uint64   `json:"send_ns"`
	Wait      uint64   `json:"wait_ns"`
	Work      uint64   `json:"work_ns"` // after the last peer's data: reduce, or reading counts
	Max       uint64   `json:"max_ns"`
	Bytes     uint64   `json:"num_bytes"`
	RowsOut   uint64   `json:"num_rows"`
	RowsIn    uint64   `json:"num_rows_received"`
	Tokens    uint64   `json:"num_tokens"`
	Times     []uint64 `json:"time_histogram"`
	Waits     []uint64 `json:"wait_histogram"`
	WaitFor   []uint64 `json:"wait_ns_for"`
	Last      []uint64 `json:"last_count"`
}

// MemoryStats is what a rank has made, in bytes.
type MemoryStats struct {
	Slabs     uint64 `json:"num_slabs"`
	SlabBytes uint64 `json:"slab_bytes"`
	Present   uint64 `json:"prefaulted_bytes"`
}

// Stats are one rank's totals since its buffer was made.
type Stats struct {
	Rank       int         `json:"rank"`
	NumRanks   int         `json:"num_ranks"`
	Epoch      uint64      `json:"epoch"`
	Recording  bool        `json:"recording"`
	Records    uint64      `json:"num_records"`
	Events     uint64      `json:"num_events"`
	Violations uint64      `json:"num_violations"`
	Dispatch   Totals      `json:"dispatch"`
	Combine    Totals      `json:"combine"`
	RowsTo     []uint64    `json:"num_rows_sent_to"`
	RowsFrom   []uint64    `json:"num_rows_received_from"`
	Experts    []uint64    `json:"expert_rows"`
	Memory     MemoryStats `json:"memory"`
}

// Stats reads the totals. While the owner writes, numbers of one operation may
// be there in part. The memory is shared: any process that has it mapped may
// have written any of its words. So the caller gives the number of ranks, at
// most rankset.MaxRanks, and the rank that owns the area. Stats takes only sums from the
// memory itself.
func (a Area) Stats(rank, ranks int) Stats {
	_, flags := unpair(a.load(wordFormat))
	s := Stats{
		Rank: rank, NumRanks: ranks, Epoch: a.load(wordEpoch), Recording: flags&flagRecording != 0,
		Records: a.load(wordNext), Events: a.load(wordEvents),
		Violations: a.load(wordViolations),
		Dispatch:   a.totals(Dispatch, ranks), Combine: a.totals(Combine, ranks),
		RowsTo: a.loads(rowsToAt, ranks), RowsFrom: a.loads(rowsFromAt, ranks),
		Experts: make([]uint64, min(a.load(wordExperts), MaxExperts)),
		Memory:  MemoryStats{a.load(wordSlabs), a.load(wordSlabSize), a.load(wordPresent)},
	}
	for l := range s.Experts {
		s.Experts[l] = a.expert(l).Load()
	}
	return s
}

func (a Area) totals(k Kind, ranks int) Totals {
	at := kindsAt + int(k-Dispatch)*kindWords
	w := a.loads(at, numTotals)
	return Totals{
		Done: w[totalDone], Failed: w[totalFailed], Cancelled: w[totalCancelled],
		Time: w[totalTime], Send: w[totalSend], Wait: w[totalWait], Work: w[totalWork], Max: w[totalMax],
		Bytes: w[totalBytes], RowsOut: w[totalRowsOut], RowsIn: w[totalRowsIn], Tokens: w[totalTokens],
		Times: a.loads(at+timeAt, NumBuckets), Waits: a.loads(at+waitAt, NumBuckets),
		WaitFor: a.loads(at+waitForAt, ranks), Last: a.loads(at+lastAt, ranks),
	}
}

// Current returns the operation that is shown to be in flight, and when it
// began; kind 0: none is.
func (a Area) Current() (k Kind, op uint64, since int64) {
	w := a.load(wordCurrent)
	return Kind(w & 0xff), w >> 8, int64(a.load(wordSince))
}

// HasLeft reports whether the area's owner has left an epoch by itself.
func (a Area) HasLeft(epoch membership.Epoch) bool { return a.load(wordLeft) == uint64(epoch)+1 }

// PID is the process id that the area's owner wrote; 0 before it did.
func (a Area) PID() int {
	pid, _ := unpair(a.load(wordProcess))
	return pid
}
