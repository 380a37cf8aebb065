package endpoint

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// changedWorld is two nodes; the first one's owner is told of changes.
func changedWorld(t *testing.T, changed func(why error)) *world {
	first := true
	return testWorld(t, 2, fake.Config{}, func(c *Config) {
		if first {
			c.Changed = func(_ Peer, _ Ref, why error) { changed(why) }
		}
		first = false
	})
}

// TestChangesInOrder: an owner that hears of a connection's end has heard of its
// beginning, though two goroutines have decided them.
func TestChangesInOrder(t *testing.T) {
	ended, reported := make(chan struct{}), make(chan bool, 2)
	w := changedWorld(t, func(why error) {
		if why == nil {
			select {
			case <-ended:
			case <-time.After(50 * time.Millisecond):
			}
		} else {
			close(ended)
		}
		reported <- why == nil
	})
	a := w.nodes[0].now()
	a.Retire(w.nodes[0].connect(t, 1))
	require.True(t, <-reported, "the end was told first")
	require.False(t, <-reported)
}

// TestNoCallbackAfterClose (ES16): when Close has returned, the owner is told nothing any
// more.
func TestNoCallbackAfterClose(t *testing.T) {
	var numReports atomic.Int32
	w := changedWorld(t, func(why error) {
		if why == nil {
			time.Sleep(50 * time.Millisecond)
		}
		numReports.Add(1)
	})
	w.nodes[0].connect(t, 1)
	err, reported := w.nodes[0].halt(), numReports.Load()
	w.nodes[0].start() // for the world's own close
	require.NoError(t, err)
	require.EqualValues(t, 2, reported, "live, and then no longer")
}

// TestPanicInPrepare: it is a failed attempt, and its place comes free.
func TestPanicInPrepare(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, func(c *Config) { c.RetryAfter = time.Hour })
	s := w.nodes[0].now()
	s.cfg.Prepare = func(Ref) error { panic("no memory to post") }
	_, err := s.Wait(1, soon())
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "no memory to post")
	eventually(t, "its place", func() bool { return w.nodes[0].dev.Counts().QueuePairs == 0 && s.Stats().Retiring == 0 })
}

// frail panics in the next call that panics names, once.
type frail struct {
	transport.Transport
	panics atomic.Pointer[string]
}

func (f *frail) mayPanic(call string) {
	if p := f.panics.Load(); p != nil && *p == call && f.panics.CompareAndSwap(p, nil) {
		panic("defect in " + call)
	}
}

func (f *frail) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	f.mayPanic("NewEndpoint")
	ep, err := f.Transport.NewEndpoint(spec)
	if err != nil {
		return nil, err
	}
	return &frailEndpoint{ep, f}, nil
}

type frailEndpoint struct {
	transport.Endpoint
	f *frail
}

func (e *frailEndpoint) Connect(remote []byte, deadline time.Time) error {
	e.f.mayPanic("Connect")
	return e.Endpoint.Connect(remote, deadline)
}

func (e *frailEndpoint) Retire() error { e.f.mayPanic("Retire"); return e.Endpoint.Retire() }
func (e *frailEndpoint) Close() error  { e.f.mayPanic("Close"); return e.Endpoint.Close() }

// TestPanicInTransport: it counts as a failure of the call, and the place comes
// free.
func TestPanicInTransport(t *testing.T) {
	for _, call := range []string{"NewEndpoint", "Connect", "Retire", "Close"} {
		t.Run(call, func(t *testing.T) {
			var first *frail
			w := testWorld(t, 2, fake.Config{}, func(c *Config) {
				c.RetryAfter = time.Hour
				if first == nil {
					first = &frail{Transport: c.Transport}
					c.Transport = first
				}
			})
			a := w.nodes[0]
			first.panics.Store(&call)
			ref, err := a.now().Wait(1, soon())
			if call == "NewEndpoint" || call == "Connect" {
				require.ErrorIs(t, err, ErrUnreachable)
				require.ErrorContains(t, err, "defect in "+call)
			} else {
				require.NoError(t, err)
				a.now().Retire(ref)
			}
			eventually(t, "its place", func() bool {
				s := a.now().Stats()
				return a.dev.Counts().QueuePairs == 0 && s.Retiring+s.Connecting+s.Quarantined == 0
			})
			require.Nil(t, first.panics.Load(), "nothing has panicked")
		})
	}
}

// TestPanicInEviction: an idle connection that cannot be taken down at once, for
// want of a queue pair, is later.
func TestPanicInEviction(t *testing.T) {
	for _, call := range []string{"Retire", "Close"} {
		t.Run(call, func(t *testing.T) {
			var first *frail
			w := testWorld(t, 3, fake.Config{}, func(c *Config) {
				c.RetryAfter = time.Hour
				if first == nil {
					first = &frail{Transport: c.Transport}
					c.Transport = first
				}
			})
			a := w.nodes[0]
			a.now().cfg.Prepare = nil // without receives it is idle
			a.connect(t, 1)
			first.panics.Store(&call)
			w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Times: 1, Err: transport.ErrNoResource})
			_, err := a.now().Wait(2, soon())
			require.ErrorIs(t, err, transport.ErrNoResource)
			eventually(t, "it is gone", func() bool { return a.dev.Counts().QueuePairs == 0 && a.now().Stats().Retiring == 0 })
			require.Nil(t, first.panics.Load(), "nothing has panicked")
		})
	}
}

// TestPanicInChanged (ES16): the clock goes on after a panic of the owner's, and
// tells what was to be told after it.
func TestPanicInChanged(t *testing.T) {
	var calls atomic.Int32
	w := changedWorld(t, func(error) {
		if calls.Add(1) == 1 {
			panic("a mistake of the owner's")
		}
	})
	s := w.nodes[0].now()
	s.mu.Lock()
	s.news = append(s.news, change{peer: 1}, change{peer: 1})
	s.mu.Unlock()
	eventually(t, "both were told", func() bool { return calls.Load() == 2 && s.Stats().Panics == 1 })
}

// TestZeroRef (ES11): the Ref that comes with an error names nothing.
func TestZeroRef(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	s := w.nodes[0].now()
	r := w.nodes[0].connect(t, 1)
	s.Retire(Ref{})
	again, err := s.Get(1)
	require.NoError(t, err)
	require.Equal(t, r, again)
	e := newEntry()
	e.word.Store((1<<32-1)<<8 | uint64(live)) // its last generation
	e.leave()
	require.EqualValues(t, 1, e.gen())
}

// TestFailingCalls (ES4, ES6, ES9): a connection with a failed teardown is taken down at
// a later attempt, whatever began it.
func TestFailingCalls(t *testing.T) {
	again := errors.New("try again")
	for _, point := range []fake.Point{fake.AtRetire, fake.AtDestroy} {
		t.Run(point.String(), func(t *testing.T) {
			w := testWorld(t, 2, fake.Config{}, nil)
			a := w.nodes[0]
			r := a.connect(t, 1)
			w.net.Inject(fake.Fault{Point: point, Transport: a.dev, Times: 1, Err: again})
			a.now().Retire(r)
			eventually(t, "the end", func() bool { return a.dev.Counts().QueuePairs == 0 && a.now().Stats().Retiring == 0 })
		})
		t.Run(point.String()+" of an idle one", func(t *testing.T) {
			// The test may look late: the failure is not forgotten until then.
			w := testWorld(t, 3, fake.Config{}, func(c *Config) { c.RetryAfter = time.Hour })
			a := w.nodes[0]
			a.now().cfg.Prepare = nil // without receives it is idle
			a.connect(t, 1)
			w.net.Inject(fake.Fault{Point: point, Transport: a.dev, Times: 1, Err: again})
			w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Times: 1, Err: transport.ErrNoResource})
			_, err := a.now().Wait(2, soon())
			require.ErrorIs(t, err, transport.ErrNoResource)
			eventually(t, "the end", func() bool { return a.dev.Counts().QueuePairs == 0 && a.now().Stats().Retiring == 0 })
		})
	}
}

// TestNeverDestroyed (ES9): what cannot be destroyed for too long is in
// quarantine, too, also while it is tried again.
func TestNeverDestroyed(t *testing.T) {
	w := testWorld(t, 3, fake.Config{}, func(c *Config) {
		c.Cap, c.QuarantineCap, c.DrainFor = 2, 1, 20*time.Millisecond
	})
	a := w.nodes[0]
	r := a.connect(t, 1)
	stuck := w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: a.dev, Err: errors.New("never")})
	a.now().Retire(r)
	eventually(t, "quarantine", func() bool { return a.now().Stats().Quarantined == 1 })
	for tries := stuck.Struck(); stuck.Struck() < tries+5; {
		_, err := a.now().Get(2)
		require.ErrorIs(t, err, ErrDisabled)
	}
	stuck.Remove()
	eventually(t, "the end of quarantine", func() bool { return a.dev.Counts().QueuePairs == 0 && a.now().Stats().Quarantined == 0 })
	a.connect(t, 2)
}

// TestStuckConnects (ES14, ES16): as many connects as may be under way, none of
// which returns, hold up neither teardown nor the making of what comes next.
func TestStuckConnects(t *testing.T) {
	w := testWorld(t, 4, fake.Config{}, func(c *Config) { c.NumTasks, c.ConnectFor, c.DrainFor = 2, time.Hour, time.Hour })
	a := w.nodes[0]
	r := a.connect(t, 3)
	gate := fake.NewGate()
	stuck := w.net.Inject(fake.Fault{Point: fake.AtConnect, Transport: a.dev, Gate: gate})
	t.Cleanup(func() { stuck.Remove(); gate.Open() }) // before the world's own close
	for to := Peer(1); to < 3; to++ {
		_, err := a.now().Get(to)
		require.ErrorIs(t, err, ErrConnecting)
	}
	eventually(t, "the connects", func() bool { return gate.Waiting() == 2 })
	a.now().Retire(r)
	eventually(t, "the teardown", func() bool { return a.now().Stats().Retiring == 0 && a.dev.Counts().QueuePairsDestroyed == 1 })
}

// TestCloseTwiceAtOnce: only one of them polls and waits for the transport.
func TestCloseTwiceAtOnce(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	s := w.nodes[0].now()
	w.nodes[0].connect(t, 1)
	close(w.nodes[0].stop)
	<-w.nodes[0].ended
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- s.Close(soon()) }()
	}
	require.NoError(t, <-ended)
	require.NoError(t, <-ended)
	w.nodes[0].start() // for the world's own close
}
