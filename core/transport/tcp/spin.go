package tcp

import (
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// spinFor is how long a goroutine looks again and again before it sleeps, if the last
// time something came that soon: to fall asleep and be woken costs two switches, and
// those of Go's watching thread. It is more than what a peer takes to answer 64 KiB
// (docs/transport-tcp.md). Where nothing happens no goroutine spins.
const spinFor = 150 * time.Microsecond

// spin looks for something to do, and leaves the core to others between two
// looks; false: nothing came.
func (t *Transport) spin(s *sleeper, begin time.Time, d time.Duration) bool {
	bound := s.spinFor
	if d >= 0 {
		bound = min(bound, d)
	}
	for time.Since(begin) < bound {
		if t.isDue(s) || t.poller.IsReady() {
			return true
		}
		sys.Yield()
	}
	return false
}
