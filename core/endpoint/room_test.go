package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// full is a world whose first node has as many live connections as places. All
// its peers are names of the second one. Its clock may be the test's own.
func full(m mutant, seed uint64, places int, now func() time.Time) (*world, []Ref, error) {
	w := manyPeersOf(m, seed, fake.Config{NoReceiveTimeout: -1}, func(at int, c *Config) {
		c.Cap = (1 + 7*at) * places
		c.QuarantineCap, c.Now = c.Cap, now
		c.DrainFor, c.ConnectFor = 30*time.Second, 30*time.Second
		c.Spec.RecvDepth = 64
	})
	refs := make([]Ref, places)
	for i := range refs {
		var err error
		if refs[i], err = w.nodes[0].now().Wait(Peer(1+i), waitFor(m)); err != nil {
			return w, nil, err
		}
	}
	return w, refs, nil
}

func closeFull(w *world, places int) error {
	err := w.closeFor(8 * places)
	if most := w.nodes[0].dev.Counts().MaxQueuePairs; most > places {
		err = errors.Join(err, fmt.Errorf("%d queue pairs, cap %d", most, places))
	}
	return err
}

// retireOutstanding retires connections with completions that come after this delay.
func retireOutstanding(w *world, refs []Ref, delay time.Duration) error {
	a := w.nodes[0]
	delayed := w.net.Inject(fake.Fault{
		Point: fake.AtComplete, Transport: a.dev, Times: len(refs), MinDelay: delay, MaxDelay: delay,
	})
	defer delayed.Remove()
	for _, r := range refs {
		if _, err := a.now().PostSend(r, []transport.SendRequest{{Op: transport.OpSend}}); err != nil {
			return err
		}
	}
	if !until(soon(), func() bool { return delayed.Struck() == len(refs) }) {
		return fmt.Errorf("%d of %d completions are late", delayed.Struck(), len(refs))
	}
	for _, r := range refs {
		a.now().Retire(r)
	}
	return nil
}

// checkOutstandingRoom: connections that have completions outstanding for long, as many
// as may be awaited at a time, delay no peer that needs a place.
func checkOutstandingRoom(m mutant, seed uint64) error {
	w, refs, err := full(m, seed, 8, nil)
	if err == nil {
		err = retireOutstanding(w, refs[:maxEvicting], 1500*time.Millisecond)
	}
	if err == nil {
		_, err = w.nodes[0].now().Wait(9, waitFor(m))
	}
	return errors.Join(err, closeFull(w, 8))
}

func TestOutstandingRoom(t *testing.T) {
	inBubbles(t, 25, func(t *testing.T, seed uint64) {
		w, refs, err := full(sound, seed, 16, nil)
		require.NoError(t, err)
		a := w.nodes[0].now()
		require.NoError(t, retireOutstanding(w, refs[:maxEvicting], 5*time.Second))
		begin := time.Now()
		for to := Peer(17); to <= 20; to++ {
			_, err = a.Wait(to, soon())
			require.NoError(t, err)
		}
		require.Less(t, time.Since(begin), 2*evictFor, "only the first has to wait for those that have some outstanding")
		require.EqualValues(t, 4, a.Stats().Evicted)
		require.Equal(t, maxEvicting, a.Stats().Retiring)
		require.NoError(t, closeFull(w, 16))
	})
}

// TestRetiredRoomIsAwaited: no connection is evicted while enough others, of whatever
// cause, were retired just now.
func TestRetiredRoomIsAwaited(t *testing.T) {
	begin := time.Now()
	w, refs, err := full(sound, seedOf(t), 8, func() time.Time { return begin })
	require.NoError(t, err)
	a, gate := w.nodes[0].now(), fake.NewGate()
	stuck := w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: w.nodes[0].dev, Gate: gate})
	for _, r := range refs[:maxEvicting] {
		a.Retire(r)
	}
	_, err = a.Get(9)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.Zero(t, a.Stats().Evicted)
	stuck.Remove()
	gate.Open()
	require.NoError(t, closeFull(w, 8))
}

// TestSlowEvictionLetsOneMoreGo: the evicted connection has outstanding completions;
// another one is evicted, not all the others.
func TestSlowEvictionLetsOneMoreGo(t *testing.T) {
	inBubbles(t, 25, func(t *testing.T, seed uint64) {
		w, _, err := full(sound, seed, 8, nil)
		require.NoError(t, err)
		a := w.nodes[0]
		delayed := w.net.Inject(fake.Fault{
			Point: fake.AtComplete, Transport: a.dev, Times: 1, MinDelay: 5 * time.Second, MaxDelay: 5 * time.Second,
		})
		begin := time.Now()
		_, err = a.now().Wait(9, soon())
		require.NoError(t, err)
		require.Less(t, time.Since(begin), 2*evictFor)
		require.EqualValues(t, 2, a.now().Stats().Evicted)
		delayed.Remove()
		require.NoError(t, closeFull(w, 8))
	})
}

// TestNoMoreEvictedThanNeeded: when evicted ones go at once, each need costs one
// live connection at most, in whatever order places come free and are taken.
func TestNoMoreEvictedThanNeeded(t *testing.T) {
	const places, others = 8, 8
	inBubbles(t, 200, func(t *testing.T, seed uint64) {
		w, _, err := full(sound, seed, places, nil)
		require.NoError(t, err)
		a, rng := w.nodes[0], rand.New(rand.NewPCG(seed, 3))
		w.net.Inject(fake.Fault{Point: fake.AtComplete, Transport: a.dev, MaxDelay: 10 * time.Millisecond})
		needs := 1 + rng.IntN(others)
		var wg sync.WaitGroup
		for k := range needs {
			delay := time.Duration(rng.IntN(3000)) * time.Microsecond
			wg.Go(func() {
				time.Sleep(delay)
				_, err := a.now().Wait(Peer(places+1+k), soon())
				require.NoError(t, err)
			})
		}
		wg.Wait()
		require.LessOrEqual(t, a.now().Stats().Evicted, uint64(needs))
		require.NoError(t, closeFull(w, places))
	})
}

// checkSpare: of two peers that need a place, one gets the place of the other's evicted
// connection. The other then waits for the place of the first one's, and evicts no more.
func checkSpare(m mutant, seed uint64) error {
	begin := time.Now()
	w, _, err := full(m, seed, 3, func() time.Time { return begin })
	a, gate := w.nodes[0], fake.NewGate()
	stuck := w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: a.dev, Times: 1, Gate: gate})
	get := func(to Peer) {
		if _, e := a.now().Get(to); !errors.Is(e, transport.ErrWouldBlock) {
			err = errors.Join(err, fmt.Errorf("peer %d: %v, expected no place", to, e))
		}
	}
	get(4)
	<-gate.Arrived()
	get(5)
	if !until(waitFor(m), func() bool { return a.dev.Counts().QueuePairsDestroyed == 1 }) {
		err = errors.Join(err, errors.New("nothing was destroyed"))
	}
	_, wait := a.now().Wait(4, waitFor(m))
	get(5)
	if n := a.now().Stats().Evicted; n != 2 {
		err = errors.Join(err, fmt.Errorf("%d evicted for two", n))
	}
	gate.Open()
	stuck.Remove()
	return errors.Join(err, wait, closeFull(w, 3))
}

// TestStalledPoller: while nothing completes at all, few are evicted, however
// many ask and however often. Time is the test's own: only asking takes any.
func TestStalledPoller(t *testing.T) {
	const places = 32
	inBubbles(t, 20, func(t *testing.T, seed uint64) {
		begin, now := time.Now(), atomic.Int64{}
		w, _, err := full(sound, seed, places, func() time.Time { return begin.Add(time.Duration(now.Load())) })
		require.NoError(t, err)
		a := w.nodes[0]
		goOn := a.pause()
		for passed := time.Duration(0); passed < 25*time.Second; passed += 20 * time.Millisecond {
			now.Store(int64(passed))
			for to := Peer(places + 1); to <= 2*places; to++ {
				_, err := a.now().Get(to)
				require.ErrorIs(t, err, transport.ErrWouldBlock)
			}
			if passed <= evictFor {
				require.EqualValues(t, maxEvicting, a.now().Stats().Evicted)
			}
		}
		require.LessOrEqual(t, a.now().Stats().Evicted, uint64(maxEvicting+8), "their distance doubles")
		require.Greater(t, a.now().Stats().Evicted, uint64(maxEvicting))
		goOn()
		_, err = a.now().Wait(places+1, soon())
		require.NoError(t, err)
		require.NoError(t, closeFull(w, places))
	})
}

func TestEvictionMakesRoom(t *testing.T) { inBubbles(t, 200, evictionMakesRoom) }

func evictionMakesRoom(t *testing.T, seed uint64) {
	w := newWorld(seed, 7, fake.Config{}, nil)
	a := w.nodes[0]
	for round := range 3 {
		for to := Peer(1); to < 7; to++ {
			before := a.now().Stats()
			if before.Live == capacity && !a.now().Has(to) {
				before.Evicted++
			}
			a.connect(t, to)
			require.LessOrEqual(t, a.now().Stats().Live, capacity, "round %d", round)
			require.Equal(t, before.Evicted, a.now().Stats().Evicted, "round %d, peer %d", round, to)
		}
	}
	require.EqualValues(t, 3*6-capacity, a.now().Stats().Evicted, "it goes round and round")
	require.NoError(t, w.close())
}

// TestOneEvictionEach: a peer that asks for a connection at the cap takes one from
// another peer, however often it asks, and another one only when that does not come free
// soon. Time is the test's own, so that a slow machine changes nothing.
func TestOneEvictionEach(t *testing.T) {
	var later atomic.Int64
	begin := time.Now()
	w := testWorld(t, 7, fake.Config{}, func(c *Config) {
		c.ConnectFor = testTimeout
		c.Now = func() time.Time { return begin.Add(time.Duration(later.Load())) }
	})
	a := w.nodes[0]
	for to := Peer(1); to <= capacity; to++ {
		a.connect(t, to)
	}
	gate := fake.NewGate()
	stuck := w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: a.dev, Times: 1, Gate: gate})
	defer stuck.Remove()
	defer gate.Open()
	for range 10 {
		_, err := a.now().Get(5)
		require.ErrorIs(t, err, transport.ErrWouldBlock)
	}
	<-gate.Arrived()
	_, err := a.now().Get(5)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	require.EqualValues(t, 1, a.now().Stats().Evicted)
	later.Store(int64(evictFor))
	a.connect(t, 5)
	require.EqualValues(t, 2, a.now().Stats().Evicted)
}
