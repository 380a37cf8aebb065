package shm

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// TestNextLook: the earliest of the deadline, the next look for the dead, and the end of the
// listener's rest.
func TestNextLook(t *testing.T) {
	for name, c := range map[string]struct {
		survivor     bool
		until, rests time.Duration // from now on
		want         time.Duration
	}{
		"deadline":           {false, time.Hour, 0, time.Hour},
		"rest":               {false, time.Hour, time.Minute, time.Minute},
		"rest that is over":  {false, time.Hour, -time.Minute, time.Hour},
		"deadline in a rest": {false, time.Second, time.Minute, time.Second},
		"the dead":           {true, time.Hour, 0, 50 * time.Millisecond},
		"the dead in a rest": {true, time.Hour, time.Minute, 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			m := &rendezvous{survivor: c.survivor, until: now.Add(c.until), rests: now.Add(c.rests)}
			if got := m.nextLook().Sub(now); got < c.want || got > c.want+time.Second/2 {
				t.Errorf("in %v, want %v", got, c.want)
			}
		})
	}
}

// TestListenerRestsAndGoesOn: a connection that could not be taken at first is taken soon,
// though nothing else happens that would wake the rendezvous.
func TestListenerRestsAndGoesOn(t *testing.T) {
	const deadline = 5 * time.Second
	listeners, all := openAll(t, 2, 64)
	var failed atomic.Bool
	stop := sys.InjectFaults(func(call string) error {
		if call == "accept4" && failed.CompareAndSwap(false, true) {
			return syscall.EMFILE
		}
		return nil
	})
	defer stop()
	begin := time.Now()
	domains, errs := connectAll(listeners, all, deadline)
	took := time.Since(begin)
	for r, d := range domains {
		if errs[r] != nil {
			t.Fatalf("rank %d after %v: %v", r, took, errs[r])
		}
		defer d.Close()
	}
	if !failed.Load() || took > deadline/2 {
		t.Errorf("failed: %v, took %v", failed.Load(), took)
	}
}
