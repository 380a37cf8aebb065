package telemetry

import "github.com/moewire/moewire/core/group/membership"

// MaxEvents is how many events are kept; older ones are forgotten.
const MaxEvents = 64

// Event is something that should be reported to a person.
type Event struct {
	Sequence uint64           `json:"sequence"` // 1 for the first
	Kind     string           `json:"kind"`     // "slow", "lost", "left" or "fell_back"
	Rank     int              `json:"rank"`     // the rank that it is about
	PID      int              `json:"pid"`      // its process, 0: not known
	Epoch    membership.Epoch `json:"epoch"`
	Waiting  string           `json:"waiting"` // the kind of operation that waited
	Op       uint64           `json:"operation"`
	WaitedNs int64            `json:"waited_ns"`
	TimeNs   int64            `json:"time_ns"` // CLOCK_MONOTONIC
	Why      string           `json:"why"`
}

// The kinds of events.
const (
	Slow = "slow"
	Lost = "lost"
	Left = "left"
	// FellBack: the rank is reached over another carrier than before.
	FellBack = "fell_back"
)

// Events is the list of the latest ones. Not safe for concurrent use.
type Events struct {
	recorded uint64
	ring     [MaxEvents]Event
}

// Add appends an event and numbers it.
func (e *Events) Add(ev Event) uint64 {
	e.recorded++
	ev.Sequence = e.recorded
	e.ring[(e.recorded-1)%MaxEvents] = ev
	return e.recorded
}

// After returns the events after sequence number `since` that are still
// there, and the number of the latest one.
func (e *Events) After(since uint64) (events []Event, latest uint64) {
	oldest := uint64(0)
	if e.recorded > MaxEvents {
		oldest = e.recorded - MaxEvents
	}
	events = []Event{}
	for i := max(since, oldest); i < e.recorded; i++ {
		events = append(events, e.ring[i%MaxEvents])
	}
	return events, e.recorded
}
