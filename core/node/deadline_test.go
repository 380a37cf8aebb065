package node

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/internal/sys"
)

const (
	// shortly is what the calls of the table are given. A quiet machine needs 0.1 s more at most.
	shortly   = 300 * time.Millisecond
	mayBeLate = time.Second
)

// alone are calls of rank 0 that rank 1 does not answer.
var alone = []struct {
	name string
	call func(b *Buffer, r *Routing) error
}{
	{"make routing", func(b *Buffer, _ *Routing) error {
		_, o, err := b.MakeRouting(&routing.Args{NumTokens: 1, NumExperts: 2, InRank: []byte{1, 1}, Timeout: shortly}, -1)
		return waited(o, err)
	}},
	{"scatter", func(b *Buffer, r *Routing) error {
		a := &routing.ScatterArgs{X: make([]byte, 16), RowBytes: 16, Out: make([]byte, 32), Timeout: shortly}
		o, err := b.Scatter(r, a, -1)
		return waited(o, err)
	}},
	{"gather", func(b *Buffer, r *Routing) error {
		a := &routing.GatherArgs{
			X: make([]byte, 32), Hidden: 8, RowType: protocol.BF16, OutType: protocol.BF16, Out: make([]byte, 16), Timeout: shortly,
		}
		o, err := b.Gather(r, a, -1)
		return waited(o, err)
	}},
}

func waited(o Operation, err error) error {
	if o.Pending() {
		err = errors.Join(err, o.Wait(ep.PhaseDone, -1))
		o.Close()
	}
	return err
}

// pairOn makes two ranks of one host, or of two.
func pairOn(t *testing.T, hosts int) (pair [2]*Buffer) {
	if hosts == 2 {
		return newPair(t)
	}
	for r := range pair {
		var err error
		pair[r], err = New(Config{Rank: r, NumRanks: 2})
		require.NoError(t, err)
	}
	return pair
}

// TestCallsEndInTimeWithoutAnything: in a process that has nothing left, calls over a routing
// end by their deadline, in shared memory and between hosts.
func TestCallsEndInTimeWithoutAnything(t *testing.T) {
	late, number := time.Duration(0), 0
	for _, hosts := range []int{1, 2} {
		for _, c := range alone {
			number++
			for i, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
				if testing.Short() && i != number%4 {
					continue
				}
				t.Run(fmt.Sprint(hosts, " ", c.name, " ", errno), func(t *testing.T) {
					late = max(late, lateness(t, hosts, errno, c.call))
				})
			}
		}
	}
	t.Logf("at most %v after the deadline", late)
}

// rendezvousCalls are what rank 0 does of a rendezvous to which rank 1 does not come.
var rendezvousCalls = []struct {
	name    string
	prepare func(t *testing.T, pair [2]*Buffer)
	call    func(pair [2]*Buffer) error
}{
	{"connect", func(*testing.T, [2]*Buffer) {}, connectAlone},
	{"connect of an update", func(t *testing.T, pair [2]*Buffer) {
		require.Equal(t, [2]error{}, connectPair(pair, soon))
		require.NoError(t, errors.Join(pair[0].Update(), pair[1].Update()))
	}, connectAlone},
	{"update and connect", func(t *testing.T, pair [2]*Buffer) {
		require.Equal(t, [2]error{}, connectPair(pair, soon))
		require.NoError(t, pair[1].Update())
	}, func(pair [2]*Buffer) error {
		if err := pair[0].Update(); err != nil {
			return err
		}
		return connectAlone(pair)
	}},
}

func connectAlone(pair [2]*Buffer) error {
	return pair[0].Connect([][]byte{pair[0].Metadata(), pair[1].Metadata()}, shortly)
}

// TestRendezvousEndsInTimeWithoutAnything: in a process that has nothing left, a construction and an
// update end by their deadline where the other rank does not come.
func TestRendezvousEndsInTimeWithoutAnything(t *testing.T) {
	late, number := time.Duration(0), 0
	for _, hosts := range []int{1, 2} {
		for _, c := range rendezvousCalls {
			number++
			for i, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
				if testing.Short() && i != number%4 {
					continue
				}
				t.Run(fmt.Sprint(hosts, " ", c.name, " ", errno), func(t *testing.T) {
					pair := pairOn(t, hosts)
					defer closeBoth(pair)
					c.prepare(t, pair)
					late = max(late, latenessOf(t, errno, func() error { return c.call(pair) }))
				})
			}
		}
	}
	t.Logf("at most %v after the deadline", late)
}

func closeBoth(pair [2]*Buffer) {
	for _, b := range pair {
		_ = b.Close()
	}
}

// lateness is latenessOf of a call of rank 0 over a routing.
func lateness(t *testing.T, hosts int, errno syscall.Errno, call func(b *Buffer, r *Routing) error) time.Duration {
	pair := pairOn(t, hosts)
	defer closeBoth(pair)
	require.Equal(t, [2]error{}, connectPair(pair, soon))
	made := both(t, func(r int) (*Routing, error) { r0, _, err := routeAll(pair[r], 1); return r0, err })
	return latenessOf(t, errno, func() error { return call(pair[0], made[0]) })
}

// latenessOf is how long after its deadline a call has ended, with an error, while such an error is what
// every system call gets that needs something.
func latenessOf(t *testing.T, errno syscall.Errno, call func() error) time.Duration {
	stop := sys.InjectFaults(func(string) error { return errno })
	defer stop()
	ended, begin := make(chan error, 1), time.Now()
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		took := time.Since(begin)
		require.Error(t, err)
		require.LessOrEqual(t, took, shortly+mayBeLate, err)
		if !sys.IsShortage(err) { // which ends the call at once, and says of what
			require.GreaterOrEqual(t, took, shortly/2, "it waited for no rank: %v", err)
		}
		return took - shortly
	case <-time.After(20 * shortly):
		t.Fatal("the call does not return")
		return 0
	}
}
