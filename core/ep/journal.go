package ep

import (
	"os"
	"sync/atomic"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/telemetry"
)

// Journal is what a rank says of itself in its control page, on any engine: who it is, and
// the events that people should hear of. Its user has a lock for it.
type Journal struct {
	Area  telemetry.Area
	Clock telemetry.Clock
	Ended bool // the buffer is being closed: the page may go away

	dom    domain.Domain
	count  *atomic.Uint64 // Config.EventCount
	events telemetry.Events
}

// Open begins a rank's journal.
func (j *Journal) Open(dom domain.Domain, cfg *Config, epoch membership.Epoch) {
	j.dom, j.count, j.Clock = dom, cfg.EventCount, telemetry.NewClock()
	p := telemetry.Place{
		Rank: dom.Rank(), NumRanks: dom.NumRanks(), PID: os.Getpid(), NumSlots: cfg.NumSlots,
		AreaOff: layout.Record(), WaitsForOff: layout.WaitsFor(), BeatOff: layout.Beat(), Recording: !cfg.NoRecord,
	}
	if g, ok := dom.(interface{ GroupID() uint64 }); ok {
		p.Group = g.GroupID()
	}
	j.Area, _ = j.AreaOf(p.Rank)
	j.Area.Open(p)
	j.Area.SetEpoch(epoch)
}

// AreaOf is what a rank says of itself; false: the rank is absent.
func (j *Journal) AreaOf(rank int) (telemetry.Area, bool) {
	control := j.dom.Control(rank)
	if control == nil {
		return telemetry.Area{}, false
	}
	return telemetry.At(control, layout.Record()), true
}

// PID is the process that a rank says it is; 0: it has not said so.
func (j *Journal) PID(rank int) int {
	if area, ok := j.AreaOf(rank); ok {
		return area.PID()
	}
	return 0
}

// Note numbers an event and makes it known.
func (j *Journal) Note(ev telemetry.Event) {
	ev.TimeNs = j.Clock.Now()
	recorded := j.events.Add(ev)
	if !j.Ended {
		j.Area.SetEvents(recorded)
	}
	if j.count != nil {
		j.count.Add(1)
	}
}

// NoteFallback notes that a rank of another host is reached over another carrier than
// before, in the middle of an epoch.
func (j *Journal) NoteFallback(rank int, epoch membership.Epoch, why string) {
	if !j.Ended {
		j.Note(telemetry.Event{Kind: telemetry.FellBack, Rank: rank, PID: j.PID(rank), Epoch: epoch, Why: why})
	}
}

// Events returns the events after a sequence number that are still kept, and the number of
// the latest one.
func (j *Journal) Events(since uint64) ([]telemetry.Event, uint64) { return j.events.After(since) }
