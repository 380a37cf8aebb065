package client

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
)

const (
	// shortly is what the calls of the table are given. A quiet machine needs 0.1 s more at most.
	shortly   = 200 * time.Millisecond
	mayBeLate = time.Second
)

// alone is a client whose server does not answer any more, with a lease and a pending request.
type alone struct {
	*Client
	lease   *Lease
	pending uint64
	cfg     Config
}

var theKey = [][]byte{[]byte("key")}

// do makes a call of Do. The timeout of the client is an hour, so it is that of the request that counts.
func do(op message.Code) func(*alone) error {
	return func(a *alone) error {
		r := Request{Op: op, Keys: theKey, Timeout: shortly}
		if op == message.Pin {
			r.For = time.Second
		}
		if op == message.Put {
			r.Buffers = [][][]byte{{make([]byte, 3000)}}
		}
		_, err := a.Do(r)
		return err
	}
}

// deadlineCalls are the public calls with a deadline. All but the last two cannot end otherwise.
var deadlineCalls = []struct {
	name  string
	waits bool
	call  func(a *alone) error
}{
	{"put", true, do(message.Put)},
	{"get", true, do(message.Get)},
	{"exists", true, do(message.Exists)},
	{"delete", true, do(message.Delete)},
	{"touch", true, do(message.Touch)},
	{"pin", true, do(message.Pin)},
	{"lookup", true, func(a *alone) error { _, err := a.Lookup(theKey, 0, shortly); return err }},
	{"list", true, func(a *alone) error { return a.List(nil, shortly, func([]byte) bool { return true }) }},
	{"page", true, func(a *alone) error { _, _, err := a.Page(nil, nil, shortly); return err }},
	{"stats", true, func(a *alone) error { a.Stats(shortly); return nil }},
	{"flush", true, func(a *alone) error { return a.Flush(shortly) }},
	{"read of a lease", true, func(a *alone) error {
		_, err := a.lease.Read([][]byte{make([]byte, a.lease.Bytes())})
		return err
	}},
	{"end of a lease", true, func(a *alone) error { a.lease.End(); return nil }},
	{"wait", true, func(a *alone) error { _, err := a.Wait(a.pending, time.Now().Add(shortly)); return err }},
	{"close", false, func(a *alone) error { return a.Close() }},
	{"open", false, func(a *alone) error {
		a.cfg.Connect, a.cfg.Timeout = shortly, shortly
		c, err := Open(a.cfg)
		if err == nil {
			err = c.Close()
		}
		return err
	}},
}

// TestCallsEndInTimeWithoutAnything: in a process that has nothing left, each call of a server that is
// stopped ends by its deadline.
func TestCallsEndInTimeWithoutAnything(t *testing.T) {
	late := time.Duration(0)
	for number, c := range deadlineCalls {
		for i, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC} {
			if testing.Short() && i != number%4 {
				continue
			}
			t.Run(fmt.Sprint(c.name, " ", errno), func(t *testing.T) {
				over := lateness(t, errno, c.call)
				require.True(t, !c.waits || over >= -shortly/2, "it did not wait: it ended %v before the deadline", -over)
				late = max(late, over)
			})
		}
	}
	t.Logf("at most %v after the deadline", late)
}

// lateness is how long after its deadline a call has ended.
func lateness(t *testing.T, errno syscall.Errno, call func(*alone) error) time.Duration {
	s, _ := serve(t)
	a := &alone{}
	c, r := relayed(t, s, time.Hour, func(c *Config) { a.cfg = *c })
	a.Client = c
	mustPut(t, c, "key", []byte("data"))
	a.lease = leaseOf(t, c)
	r.stopped.Store(true)
	var err error
	a.pending, err = c.Submit(Request{Op: message.Get, Keys: theKey})
	require.NoError(t, err)
	stop := sys.InjectFaults(func(string) error { return errno })
	defer stop()
	ended, begin := make(chan error, 1), time.Now()
	go func() { ended <- call(a) }()
	select {
	case err := <-ended:
		took := time.Since(begin)
		require.LessOrEqual(t, took, shortly+mayBeLate, err)
		return took - shortly
	case <-time.After(20 * shortly):
		t.Fatal("the call does not return")
		return 0
	}
}

// leaseOf is one of the block of theKey that ends when its read does not come in time.
func leaseOf(t *testing.T, c *Client) *Lease {
	for until := time.Now().Add(testTimeout); ; {
		require.Less(t, time.Now(), until)
		leases, err := c.Lookup(theKey, 0, shortly)
		require.NoError(t, err)
		if leases[0] != nil {
			return leases[0]
		}
	}
}
