package node

import (
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/telemetry"
)

// Observed is what a buffer says of itself, on the CPU or on CUDA.
type Observed interface {
	NumRanks() int
	Stats() (telemetry.Stats, error)
	Records(rank, last int) ([]telemetry.Record, error)
	Events(since uint64) ([]telemetry.Event, uint64)
	Counters() ep.Counters
	Membership() (ranks rankset.Set, epoch membership.Epoch, lost uint64)
}

// core is one rank's end of a group: *cpu.Buffer on the CPU, *cuda.Buffer on CUDA.
type core interface {
	Observed
	RecordFallback(rank int, why string)
	Prepare() (ep.Standing, error)
	Abandon(cause error)
	Close() error
}

// engine is where a buffer's rows lie, on the CPU or on CUDA. It has at most one core.
type engine interface {
	calls
	// group is what makes the core's routings.
	group() (*routing.Group, error)
	// open opens the device, before the rendezvous.
	open(cfg *multihost.Config) error
	// core returns nil until make, and after drop.
	core() core
	// params are the parameters that the ranks compare when they meet.
	params(st ep.Standing) ([]byte, error)
	// check compares them. It returns the standing with which the next epoch begins.
	check(self int, params [][]byte, infos []multihost.Info) (ep.Standing, error)
	// freeRings frees the memory of messages that earlier rendezvous have left. No work
	// that the buffer has launched may be running.
	freeRings() error
	// make makes the core over a domain. On an error the domain is the caller's.
	make(dom *multihost.Domain, joining bool) error
	// connect waits for the ranks that have made their cores, too.
	connect(deadline time.Duration) error
	install(next ep.Standing, commit func() error, deadline time.Duration) error
	// stop ends waits for other ranks in connect and install. It does not wait.
	stop()
	// drop closes the core. It does nothing without one.
	drop() error
	// close ends the engine, when no connect runs. After an error it may be called again.
	close() error
	// describe explains the paths of a core.
	describe(paths []multihost.Path)
}
