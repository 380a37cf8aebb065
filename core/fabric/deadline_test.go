package fabric

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport/shmem"
)

const (
	// shortly is what the calls of the table are given. A quiet machine needs 0.1 s more at most.
	shortly   = 200 * time.Millisecond
	mayBeLate = time.Second
)

// deadlineCalls are those with a deadline. All but Close cannot end otherwise: a peer that was
// never heard of, one that sends nothing, and a transfer that no peer answers.
var deadlineCalls = []struct {
	name  string
	waits bool
	call  func(f *Fabric, waits op.Ref, until time.Time) error
}{
	{"connect", true, func(f *Fabric, _ op.Ref, until time.Time) error { return f.Connect(endpoint.Peer(7), until) }},
	{"next", true, func(f *Fabric, _ op.Ref, until time.Time) error {
		for {
			_, _, ok, err := f.Next(make([]byte, MaxHandshakeBytes), until)
			if err != nil || !ok {
				return err
			}
		}
	}},
	{"wait", true, func(f *Fabric, waits op.Ref, until time.Time) error { _, err := f.Wait(waits, until); return err }},
	{"wait until released", true, func(f *Fabric, waits op.Ref, until time.Time) error {
		_, err := f.WaitReleased(waits, until)
		return err
	}},
	{"close", false, func(f *Fabric, _ op.Ref, until time.Time) error { return f.Close(until) }},
}

// shmemWorld is two fabrics over shared memory.
func shmemWorld(t *testing.T, mode Mode) *world {
	w := &world{}
	for range 2 {
		tr, err := shmem.Open(shmem.Config{})
		require.NoError(t, err)
		f, err := Open(Config{Transport: tr, Mode: mode, SliceBytes: 100_000})
		require.NoError(t, err)
		w.fabs = append(w.fabs, f)
	}
	return w
}

// TestCallsEndInTimeWithoutAnything: over sockets and shared memory, in a process that has nothing
// left, each call with a deadline ends by it.
func TestCallsEndInTimeWithoutAnything(t *testing.T) {
	t.Run("tcp", func(t *testing.T) { endInTimeWithoutAnything(t, tcpWorld) })
	t.Run("shmem", func(t *testing.T) { endInTimeWithoutAnything(t, shmemWorld) })
}

func endInTimeWithoutAnything(t *testing.T, worldOf func(*testing.T, Mode) *world) {
	late := time.Duration(0)
	for number, c := range deadlineCalls {
		for i, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
			if testing.Short() && i != number%4 {
				continue
			}
			t.Run(fmt.Sprint(c.name, " ", errno), func(t *testing.T) {
				w := worldOf(t, Immediates)
				defer w.closeFabrics(t)
				w.carryAll()
				w.connect(t)
				waits := post(t, w.fabs[0], Request{Kind: ReceiveImm, Peer: 1}) // nothing comes
				stop := sys.InjectFaults(func(string) error { return errno })
				defer stop()
				over, err := lateness(t, func(until time.Time) error { return c.call(w.fabs[0], waits, until) })
				if c.waits && !sys.IsShortage(err) { // which ends the call at once, and says of what
					require.GreaterOrEqual(t, over, -shortly/2, "it did not wait: %v", err)
				}
				late = max(late, over)
			})
		}
	}
	t.Logf("at most %v after the deadline", late)
}

// lateness is how long after its deadline a call has ended, and its error.
func lateness(t *testing.T, call func(until time.Time) error) (time.Duration, error) {
	ended, until := make(chan error, 1), time.Now().Add(shortly)
	go func() { ended <- call(until) }()
	select {
	case err := <-ended:
		late := time.Since(until)
		require.LessOrEqual(t, late, mayBeLate, err)
		return late, err
	case <-time.After(20 * shortly):
		t.Fatal("the call does not return")
		return 0, nil
	}
}
