package telemetry

import (
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// Kind of an operation.
type Kind uint16

// The kinds that are recorded.
const (
	Dispatch Kind = 1
	Combine  Kind = 2
	numKinds      = 2
)

// String is the name of a kind in statistics.
func (k Kind) String() string {
	if k == Dispatch {
		return "dispatch"
	}
	return "combine"
}

// Outcome of an operation; the numbers are those of the ABI. 3 is not used.
type Outcome uint16

// The outcomes.
const (
	Done      Outcome = 0
	Failed    Outcome = 1
	Cancelled Outcome = 2
)

// Record is one ended operation on one rank. Times are CLOCK_MONOTONIC in
// nanoseconds; 0: that did not happen.
type Record struct {
	Sequence  uint32 // 1 for the first record of a buffer
	Kind      Kind
	Outcome   Outcome
	Epoch     membership.Epoch
	Last      int16  // the rank that sent its data last; -1: no rank was waited for
	Combine   uint32 // 1 for the first combine of a handle; 0 for a dispatch
	Tokens    uint32
	Op        uint64 // number of the dispatch
	Start     int64
	Place     int64 // the first row was about to be stored
	Sent      int64 // all of our data was there for the others
	Resume    int64 // the wait for the others' data began
	Seen      int64 // all of their data was there
	End       int64
	Wait      int64       // ns blocked, before sending as well
	LastAlone int64       // ns for which only Last was missing
	RowsOut   uint32      // sent, or pulled by a combine
	RowsIn    uint32      // received
	Bytes     uint64      // stored by a dispatch; loaded and copied by a combine
	Present   uint64      // bytes of memory made present ahead of use
	Missing   rankset.Set // ranks that had to be waited for
}

// Time is how long calls worked on the operation or waited for it, in ns. The
// time between a call that returned after sending and its hook is not in it.
func (r *Record) Time() int64 {
	if r.Sent == 0 || r.Resume <= r.Sent {
		return r.End - r.Start
	}
	return r.Sent - r.Start + r.End - r.Resume
}

// Words of a record in the ring, after the first.
const (
	recordWords = RecordBytes / 8
	fieldWords  = recordWords - 1
)

func (r *Record) words() [fieldWords]uint64 {
	return [fieldWords]uint64{
		uint64(r.Kind) | uint64(r.Outcome)<<16 | uint64(r.Epoch)<<32 | uint64(uint16(r.Last))<<48,
		uint64(r.Combine) | uint64(r.Tokens)<<32,
		r.Op,
		uint64(r.Start), uint64(r.Place), uint64(r.Sent), uint64(r.Resume), uint64(r.Seen), uint64(r.End),
		uint64(r.Wait), uint64(r.LastAlone),
		uint64(r.RowsOut) | uint64(r.RowsIn)<<32,
		r.Bytes, r.Present, r.Missing.Word(),
	}
}

func recordOf(sequence uint32, w *[fieldWords]uint64) Record {
	return Record{
		Sequence: sequence,
		Kind:     Kind(w[0]), Outcome: Outcome(w[0] >> 16), Epoch: membership.Epoch(w[0] >> 32), Last: int16(w[0] >> 48),
		Combine: uint32(w[1]), Tokens: uint32(w[1] >> 32),
		Op:    w[2],
		Start: int64(w[3]), Place: int64(w[4]), Sent: int64(w[5]), Resume: int64(w[6]), Seen: int64(w[7]), End: int64(w[8]),
		Wait: int64(w[9]), LastAlone: int64(w[10]),
		RowsOut: uint32(w[11]), RowsIn: uint32(w[11] >> 32),
		Bytes: w[12], Present: w[13], Missing: rankset.FromWord(w[14]),
	}
}

// The first word of a record: its size, and its sequence number, so that it is
// the beginning of the ABI's struct, too.
func firstWord(sequence uint32) uint64 { return RecordBytes | uint64(sequence)<<32 }

func (a Area) slot(sequence uint32) int64 {
	return a.base + ringOff + int64((sequence-1)%Capacity)*RecordBytes
}

// push appends a record to the ring, over the oldest one.
func (a Area) push(r *Record) {
	next := a.load(wordNext)
	r.Sequence = uint32(next) + 1
	at := a.slot(r.Sequence)
	a.mem.Word(at).Store(0)
	for i, v := range r.words() {
		a.mem.Word(at + int64(i+1)*8).Store(v)
	}
	a.mem.Word(at).Store(firstWord(r.Sequence))
	a.word(wordNext).Store(next + 1)
}

// sound reports whether an operation can have left this record. The memory is shared: any
// process that has it mapped may have written there.
func (r *Record) sound() bool {
	for _, t := range [...]int64{r.Start, r.Place, r.Sent, r.Resume, r.Seen, r.End} {
		if t < 0 {
			return false
		}
	}
	return (r.Kind == Dispatch || r.Kind == Combine) && r.Outcome <= Cancelled && r.Last >= -1 && r.Last < rankset.MaxRanks
}

// read returns a record, unless it is being overwritten, or makes no sense.
func (a Area) read(sequence uint32) (Record, bool) {
	at := a.slot(sequence)
	if a.mem.Word(at).Load() != firstWord(sequence) {
		return Record{}, false
	}
	var w [fieldWords]uint64
	for i := range w {
		w[i] = a.mem.Word(at + int64(i+1)*8).Load()
	}
	if a.mem.Word(at).Load() != firstWord(sequence) {
		return Record{}, false
	}
	r := recordOf(sequence, &w)
	return r, r.sound()
}

// Records returns the newest records, the oldest of them first, at most `last`
// (0: all there are). It leaves out records that are overwritten meanwhile, and
// records that no operation can have left.
func (a Area) Records(last int) []Record {
	if a.load(wordMagic) != Magic {
		return nil
	}
	next := a.load(wordNext)
	n := min(next, Capacity)
	if last > 0 {
		n = min(n, uint64(last))
	}
	out := make([]Record, 0, n)
	for i := next - n; i < next; i++ {
		if r, ok := a.read(uint32(i) + 1); ok {
			out = append(out, r)
		}
	}
	return out
}

// Put writes the record as the ABI's struct, as far as dst has room.
func (r *Record) Put(dst []byte, put func([]byte, uint64)) {
	var raw [RecordBytes]byte
	put(raw[:], uint64(len(dst))|uint64(r.Sequence)<<32)
	for i, v := range r.words() {
		put(raw[(i+1)*8:], v)
	}
	clear(dst[copy(dst, raw[:]):])
}
