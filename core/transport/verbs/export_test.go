package verbs

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// UnreachableBound is how long a device may take, by the InfiniBand
// specification, to report StatusUnreachable: a device may wait up to four
// times the time that it is told, once and for each retry. Most take a quarter.
func (c Config) UnreachableBound() time.Duration {
	c, _ = c.withDefaults()
	once := 4096 * time.Nanosecond << c.TimeoutExponent
	return time.Duration(c.RetryCount+1) * 4 * once
}

// DC says whether this port has dynamically connected queue pairs.
func (t *Transport) DC() DC { return t.dc }

// DCStats reads the counters; all are 0 where DC is not used.
func (t *Transport) DCStats() (s DCStats) {
	d := t.dcPort
	if d == nil {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.pool.dcis {
		if d.pool.dcis[i].state == dciBroken {
			s.NumBroken++
		}
	}
	s.NumDCIs, s.NumFailures, s.NumResets = len(d.dcis), d.failures.Load(), d.numReset.Load()
	return s
}

// DCStats counts what became of a port's initiators.
type DCStats struct {
	NumDCIs     int
	NumBroken   int    // could not be reset: not used any more
	NumFailures uint64 // requests that ended badly, one for each time
	NumResets   uint64 // of initiators, after failures or when a peer was left
}

// EventCounts reads the counters.
func (t *Transport) EventCounts() EventCounts {
	t.events.mu.Lock()
	defer t.events.mu.Unlock()
	return EventCounts{ByType: t.events.counts, NumDropped: t.events.dropped}
}

// New opens one port. The errors are those of NewGroup.
func New(config Config) (*Transport, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	lib, err := load()
	if err != nil {
		return nil, err
	}
	return open(lib, config)
}

// open is New with a library.
func open(lib *libibverbs.Library, config Config) (*Transport, error) {
	return openAs(lib, config, &member{})
}

// Config is the configuration with its defaults filled in.
func (t *Transport) Config() Config { return t.config }

// NumStrays counts completions that belonged to no work request: a driver's
// mistake. They change nothing.
func (t *Transport) NumStrays() uint64 { return t.strays.Load() }

// EventCounts says what a device has raised since it was opened.
type EventCounts struct {
	// ByType counts by the value of libibverbs' enum ibv_event_type; the last
	// one is all types that are newer than this library.
	ByType [libibverbs.NumEventTypes + 1]uint64
	// NumDropped counts reports that PollEvents did not give, because too many
	// were waiting. EventEndpointFailed is never among them, and of EventDeviceDown
	// and EventDeviceUp not the latest.
	NumDropped uint64
}
