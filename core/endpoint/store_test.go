package endpoint

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

const testTimeout = 20 * time.Second

func soon() time.Time { return time.Now().Add(testTimeout) }

func testWorld(t *testing.T, n int, network fake.Config, cfg func(*Config)) *world {
	t.Helper()
	w := newWorld(seedOf(t), n, network, cfg)
	t.Cleanup(func() { require.NoError(t, w.close()) })
	return w
}

func (nd *node) connect(t *testing.T, to Peer) Ref {
	t.Helper()
	r, err := nd.now().Wait(to, soon())
	require.NoError(t, err)
	return r
}

// eventually waits for something that must happen.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, testTimeout, time.Millisecond, what)
}

func TestConnectAndSend(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	r := w.nodes[0].connect(t, 1)
	again := w.nodes[0].connect(t, 1)
	require.Equal(t, r, again)
	n, err := w.nodes[0].now().PostSend(r, []transport.SendRequest{{Op: transport.OpSend}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	eventually(t, "the peer has it", func() bool { return w.nodes[1].dev.Counts().Polled == 1 })
}

// TestOneConstruction (ES5): however many ask, one queue pair is made.
func TestOneConstruction(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	var wg sync.WaitGroup
	refs := make([]Ref, 32)
	for i := range refs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			refs[i], _ = w.nodes[i%2].now().Wait(Peer(1-i%2), soon())
		}()
	}
	wg.Wait()
	for i := range refs {
		require.Equal(t, refs[i%2], refs[i])
	}
	require.Equal(t, 1, w.nodes[0].dev.Counts().QueuePairsCreated)
	require.Equal(t, 1, w.nodes[1].dev.Counts().QueuePairsCreated)
}

// TestFailingPeer (ES3): a peer that fails for ever costs one place at a time.
func TestFailingPeer(t *testing.T) {
	w := testWorld(t, 4, fake.Config{}, nil)
	w.net.Inject(fake.Fault{Point: fake.AtConnect, Transport: w.nodes[3].dev, Err: errors.New("no route")})
	s := w.nodes[0].now()
	failures := 0
	for until := time.Now().Add(100 * time.Millisecond); time.Now().Before(until); {
		_, err := s.Get(3)
		require.Error(t, err)
		if errors.Is(err, ErrUnreachable) {
			failures++
		}
		for _, to := range []Peer{1, 2} {
			w.nodes[0].connect(t, to)
		}
		// One that is being made, and the one before it, on its way out.
		require.LessOrEqual(t, s.placesOf(3), 2, "%+v", s.Stats())
	}
	require.Zero(t, s.Stats().NoResource)
}

// placesOf is how many entries a peer has.
func (s *Store) placesOf(p Peer) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.entries {
		if e.state() != vacant && e.peer == p {
			n++
		}
	}
	return n
}

// TestNoResource (ES4): an idle connection gives its queue pair to another
// one; with none idle the answer says so, and the place is free again.
func TestNoResource(t *testing.T) {
	// The test may look late: the failure is not forgotten until then.
	w := testWorld(t, 4, fake.Config{NoReceiveTimeout: -1}, func(c *Config) { c.RetryAfter = time.Second })
	a := w.nodes[0]
	first := a.connect(t, 1)
	w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Times: 1, Err: transport.ErrNoResource})
	// its receives are outstanding: it is not idle
	_, err := a.now().Wait(2, soon())
	require.ErrorIs(t, err, transport.ErrNoResource)
	require.Equal(t, first, a.connect(t, 1))
	require.Equal(t, 1, a.now().Stats().Live)
	eventually(t, "once the pause is over", func() bool { _, err := a.now().Get(2); return err == nil })
	require.EqualValues(t, 1, a.now().Stats().NoResource)
}

func TestNoResourceEvictsIdle(t *testing.T) {
	w := newWorld(seedOf(t), 3, fake.Config{}, nil)
	a := w.nodes[0]
	a.now().cfg.Prepare = nil // without receives it is idle
	a.connect(t, 1)
	w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Times: 1, Err: transport.ErrNoResource})
	a.connect(t, 2)
	require.EqualValues(t, 1, a.now().Stats().Evicted)
	require.Equal(t, 1, a.now().Stats().Live)
	require.NoError(t, w.close())
}

// TestNoResourceIdleStays: the idle connection cannot be taken down at once; it
// is later, and nothing stays behind (ES2).
func TestNoResourceIdleStays(t *testing.T) {
	w := newWorld(seedOf(t), 3, fake.Config{}, func(c *Config) { c.RetryAfter = time.Hour })
	a := w.nodes[0]
	a.now().cfg.Prepare = nil // without receives it is idle
	a.connect(t, 1)
	w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: a.dev, Times: 1, Err: errors.New("try again")})
	w.net.Inject(fake.Fault{Point: fake.AtCreate, Transport: a.dev, Times: 1, Err: transport.ErrNoResource})
	_, err := a.now().Wait(2, soon())
	require.ErrorIs(t, err, transport.ErrNoResource)
	eventually(t, "it is gone", func() bool { return a.dev.Counts().QueuePairs == 0 })
	require.NoError(t, w.close())
}

// checkRetired (ES8, ES11): nothing can be posted on what is retired, and an
// old reference is none to what has its place now.
func checkRetired(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 3, fake.Config{}, func(c *Config) { c.Cap = 1 })
	defer w.close()
	a, send := w.nodes[0], []transport.SendRequest{{Op: transport.OpSend}}
	old, err := a.now().Wait(1, waitFor(m))
	if err != nil {
		return err
	}
	a.now().Retire(old)
	if _, err := a.now().PostSend(old, send); !errors.Is(err, transport.ErrState) {
		return fmt.Errorf("post on a retired connection: %v", err)
	}
	fresh, err := a.now().Wait(2, waitFor(m))
	if err != nil || fresh.index != old.index {
		return fmt.Errorf("%+v after %+v: %v", fresh, old, err)
	}
	a.now().Retire(old)
	if r, err := a.now().Get(2); r != fresh || err != nil {
		return fmt.Errorf("an old reference has retired a new connection: %v", err)
	}
	if _, err := a.now().PostSend(old, send); !errors.Is(err, transport.ErrState) {
		return fmt.Errorf("post with an old reference: %v", err)
	}
	if n := a.dev.Counts().PostedSends; n != 0 {
		return fmt.Errorf("%d sends were posted", n)
	}
	if _, err = a.now().PostSend(Ref{index: 99}, nil); !errors.Is(err, transport.ErrState) {
		return fmt.Errorf("post with a made-up reference: %v", err)
	}
	return nil
}

func TestRetired(t *testing.T) { require.NoError(t, checkRetired(sound, seedOf(t))) }

func TestRetiredMeanwhile(t *testing.T) { require.NoError(t, checkKeep(sound, seedOf(t))) }

// TestQuarantine (ES9): what has outstanding completions stays, counts, and in the end
// stops the store; when they come after all, it goes on.
func TestQuarantine(t *testing.T) {
	w := testWorld(t, 3, fake.Config{}, func(c *Config) {
		c.Cap, c.QuarantineCap, c.DrainFor = 2, 1, 20*time.Millisecond
	})
	a := w.nodes[0]
	r := a.connect(t, 1)
	delayed := w.net.Inject(fake.Fault{
		Point: fake.AtComplete, Transport: a.dev, MinDelay: 300 * time.Millisecond, MaxDelay: 300 * time.Millisecond,
	})
	a.now().Retire(r)
	eventually(t, "quarantine", func() bool { return a.now().Stats().Quarantined == 1 })
	require.Equal(t, 1, a.dev.Counts().QueuePairs)
	_, err := a.now().Get(2)
	require.ErrorIs(t, err, ErrDisabled)
	delayed.Remove()
	eventually(t, "the end of quarantine", func() bool { return a.dev.Counts().QueuePairs == 0 })
	a.connect(t, 2)
}

// TestStuckCalls (ES10, ES14, ES16): calls that do not return hold up neither
// other connections nor their reclaim.
func TestStuckCalls(t *testing.T) {
	w := testWorld(t, 4, fake.Config{}, nil)
	a := w.nodes[0]
	r := a.connect(t, 1)
	for _, point := range []fake.Point{fake.AtDestroy, fake.AtConnect} {
		gate := fake.NewGate()
		stuck := w.net.Inject(fake.Fault{Point: point, Transport: a.dev, Times: 1, Gate: gate})
		if point == fake.AtDestroy {
			a.now().Retire(r)
		} else {
			_, err := a.now().Get(3)
			require.Error(t, err)
		}
		eventually(t, "the call", func() bool { return gate.Waiting() == 1 })
		other := a.connect(t, 2)
		a.now().Retire(other)
		eventually(t, "the other's reclaim", func() bool { s := a.now().Stats(); return s.Retiring == 0 && s.Live == 0 })
		gate.Open()
		stuck.Remove()
	}
}

// TestRestart (ES13): a peer that comes back under a new epoch gets a new
// connection, and the old one goes.
func TestRestart(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	a, b := w.nodes[0], w.nodes[1]
	old := a.connect(t, 1)
	require.NoError(t, b.halt())
	b.start()
	b.connect(t, 0)
	eventually(t, "another connection", func() bool {
		r, err := a.now().Get(1)
		return err == nil && r != old
	})
	_, err := a.now().PostSend(old, []transport.SendRequest{{Op: transport.OpSend}})
	require.ErrorIs(t, err, transport.ErrState)
}

// TestLossyPost (ES13): with handshakes lost, doubled and late, both sides at once,
// each pair ends with one queue pair on either side.
func TestLossyPost(t *testing.T) {
	seed := seedOf(t)
	for round := range uint64(15) {
		w := newWorld(seed+round, 2, fake.Config{}, nil)
		w.post.lossy = true
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range 3 {
					r, err := w.nodes[i].now().Wait(Peer(1-i), soon())
					if err != nil {
						t.Errorf("node %d: %v", i, err)
						return
					}
					w.nodes[i].now().Retire(r)
				}
			}()
		}
		wg.Wait()
		require.NoError(t, w.settles())
		require.NoError(t, w.exchange())
		require.NoError(t, w.close())
	}
}

// TestEvents (ES15): a device's events change a state, or are counted.
func TestEvents(t *testing.T) {
	w := testWorld(t, 3, fake.Config{}, nil)
	a := w.nodes[0]
	lost := make(chan error, 8)
	a.now().cfg.Changed = func(_ Peer, _ Ref, why error) {
		if why != nil {
			lost <- why
		}
	}
	r := a.connect(t, 1)
	a.connect(t, 2)
	w.net.Raise(a.dev, transport.Event{Kind: transport.EventOther})
	eventually(t, "counted", func() bool { return a.now().Stats().Events == 1 })
	id := a.now().entries[r.index].ep.ID()
	w.net.Raise(a.dev, transport.Event{Kind: transport.EventEndpointFailed, Endpoint: id, Detail: "flat"})
	require.Error(t, <-lost)
	w.net.Raise(a.dev, transport.Event{Kind: transport.EventDeviceDown, Detail: "unplugged"})
	require.Error(t, <-lost)
	require.Zero(t, a.now().Stats().Live)
}

func TestMaxPeers(t *testing.T) {
	w := testWorld(t, 3, fake.Config{}, func(c *Config) { c.MaxPeers = 1 })
	w.nodes[0].connect(t, 1)
	_, err := w.nodes[0].now().Get(2)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.ErrorContains(t, err, "max_peers 1")
}

func TestClosed(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	w.nodes[0].connect(t, 1)
	require.NoError(t, w.nodes[0].halt())
	s := w.nodes[0].now()
	_, err := s.Get(1)
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, s.Close(soon()))
	w.nodes[0].start() // for the world's own close
}

func TestBadConfig(t *testing.T) {
	dev := fake.New(fake.Config{}).Transport()
	send := func(Peer, Handshake) {}
	for want, cfg := range map[string]Config{
		"transport and send": {Cap: 1, Epoch: 1},
		"cap 0, allowed 1":   {Transport: dev, Send: send, Epoch: 1},
		"policy 9":           {Transport: dev, Send: send, Epoch: 1, Cap: 1, Policy: 9},
		"epoch 0":            {Transport: dev, Send: send, Cap: 1},
	} {
		_, err := Open(cfg)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, dev.Close())
}

func TestGetAllocatesNothing(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	a := w.nodes[0]
	a.connect(t, 1)
	s := a.now()
	require.Zero(t, testing.AllocsPerRun(500, func() { _, _ = s.Get(1) }))
}

// TestGotMeanwhileIsVisited: a connection that goes live while a caller looks for it
// counts as used, too.
func TestGotMeanwhileIsVisited(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	s := w.nodes[0].now()
	r := w.nodes[0].connect(t, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entryOf(r, live, live)
	e.visited.Store(false)
	got, err := s.want(1) // what Get does once it has the lock
	require.NoError(t, err)
	require.Equal(t, r, got)
	require.True(t, e.visited.Load())
}
