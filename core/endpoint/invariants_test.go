package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// inBubbles runs a check under many seeds, each in a bubble of its own: time is
// what the network and the store make of it, and no machine is too slow.
func inBubbles(t *testing.T, numSeeds int, check func(t *testing.T, seed uint64)) {
	t.Helper()
	first := seedOf(t)
	for i := range testenv.NumSeeds(t, numSeeds) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("MOEWIRE_TEST_SEED=%d", first+i)
				}
			}()
			check(t, first+i)
		})
	}
}

// TestES6PollerHolds: nothing is destroyed of which a completion is being
// looked at.
func TestES6PollerHolds(t *testing.T) {
	inBubbles(t, 1000, func(t *testing.T, seed uint64) { require.NoError(t, checkHeld(sound, seed)) })
}

// postTimes sends n times over a connection, one after another, and returns
// the longest time from a post to its completion. A post takes no time.
func (nd *node) postTimes(to Peer, n int) (longest time.Duration, err error) {
	s := nd.now()
	for id := range uint64(n) {
		r, err := s.Wait(to, soon())
		if err != nil {
			return 0, err
		}
		begin := time.Now()
		if _, err := s.PostSend(r, []transport.SendRequest{{ID: id + 1, Op: transport.OpSend}}); err != nil {
			return 0, err
		}
		if took := time.Since(begin); took > 0 {
			return 0, fmt.Errorf("a post has taken %v", took)
		}
		for {
			if status, ok := nd.sent.LoadAndDelete(id + 1); ok && status == transport.StatusOK {
				break
			} else if ok || time.Since(begin) > testTimeout {
				return 0, fmt.Errorf("a send ended with status %v", status)
			}
			time.Sleep(10 * time.Microsecond)
		}
		longest = max(longest, time.Since(begin))
	}
	return longest, nil
}

// TestES14UnresponsivePeers: any number of peers that never answer, or whose connects
// never return, does not make a post to another peer slower. A handshake would
// take ConnectFor, which is 2 s; time is that of the bubble.
func TestES14UnresponsivePeers(t *testing.T) {
	const epsilon = 3 * time.Millisecond // polls are at most 1 ms apart
	inBubbles(t, 1000, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 14))
		w := newWorld(seed, 8, fake.Config{NoReceiveTimeout: -1}, func(c *Config) {
			c.Cap, c.NumTasks = 8, 2
			c.Spec.RecvDepth = 64
		})
		w.still.Store(true)
		a, gate := w.nodes[0], fake.NewGate()
		_, err := a.now().Wait(7, soon())
		require.NoError(t, err)
		calm, err := a.postTimes(7, 5)
		require.NoError(t, err)
		stuck := w.net.Inject(fake.Fault{Point: fake.AtConnect, Transport: a.dev, Gate: gate})
		for to := Peer(1); to < 7; to++ {
			w.net.SetUnresponsive(w.nodes[to].dev, rng.IntN(2) == 0)
			begin := time.Now()
			_, err := a.now().Get(to)
			require.ErrorIs(t, err, ErrConnecting)
			require.Zero(t, time.Since(begin), "who asks does not shake hands")
		}
		busy, err := a.postTimes(7, 6)
		require.NoError(t, err)
		require.LessOrEqual(t, busy, calm+epsilon)
		stuck.Remove()
		gate.Open()
		for to := Peer(1); to < 7; to++ {
			w.net.SetUnresponsive(w.nodes[to].dev, false)
		}
		require.NoError(t, w.closeFor(8))
	})
}

// TestES16StuckDestroys: closes that never return hold up their own endpoints
// only. More of them than may run at a time do so until they count as stuck.
func TestES16StuckDestroys(t *testing.T) {
	const numPeers = 7
	inBubbles(t, 40, func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 16))
		w := newWorld(seed, numPeers+1, fake.Config{}, func(c *Config) {
			c.Cap, c.NumTasks, c.DrainFor = numPeers, 3, time.Second
		})
		a, gate, numStuck := w.nodes[0], fake.NewGate(), 1+rng.IntN(numPeers-1)
		refs := make([]Ref, numPeers)
		for i := range refs {
			var err error
			refs[i], err = a.now().Wait(Peer(i+1), soon())
			require.NoError(t, err)
		}
		rng.Shuffle(numPeers, func(i, k int) { refs[i], refs[k] = refs[k], refs[i] })
		w.net.Inject(fake.Fault{Point: fake.AtDestroy, Transport: a.dev, Times: numStuck, Gate: gate})
		for _, r := range refs {
			a.now().Retire(r)
		}
		wait := 50 * time.Millisecond
		if numStuck >= 3 {
			wait = 10 * time.Second
		}
		require.True(t, until(time.Now().Add(wait), func() bool { return a.dev.Counts().QueuePairs == numStuck }),
			"%d stuck, %+v", numStuck, a.dev.Counts())
		gate.Open()
		require.NoError(t, w.closeFor(numPeers))
	})
}

// TestES16TicksDoNotOverlap: a tick while another one is not over does nothing,
// and Close returns after the ticker's last one.
func TestES16TicksDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks, sends atomic.Int32
		var shut atomic.Bool
		gate := make(chan struct{})
		s, err := Open(Config{
			Transport: fake.New(fake.Config{}).Transport(), Cap: 1, Epoch: 1,
			Spec: transport.EndpointSpec{SendDepth: 1, RecvDepth: 1}, ResendAfter: time.Millisecond,
			Now: func() time.Time { looks.Add(1); return time.Now() },
			Send: func(Peer, Handshake) {
				sends.Add(1)
				if shut.Load() {
					<-gate
				}
			},
		})
		require.NoError(t, err)
		_, err = s.Get(1)
		require.ErrorIs(t, err, ErrConnecting)
		time.Sleep(10 * time.Millisecond)
		shut.Store(true)
		s.Start(10 * time.Millisecond)
		time.Sleep(15 * time.Millisecond)
		synctest.Wait() // the ticker's first tick sends a handshake again, and hangs
		hung, before := sends.Load(), looks.Load()
		s.Tick()
		require.Equal(t, before, looks.Load(), "a second tick has looked at the clock")
		require.Equal(t, hung, sends.Load())

		ended := make(chan error, 1)
		go func() { ended <- s.Close(time.Now().Add(time.Minute)) }()
		time.Sleep(time.Second)
		select {
		case err := <-ended:
			t.Fatalf("closed in the middle of a tick: %v", err)
		default:
		}
		close(gate)
		require.NoError(t, <-ended)
		last, sent := looks.Load(), sends.Load()
		time.Sleep(time.Second)
		require.Equal(t, last, looks.Load(), "the ticker has ended")
		require.Equal(t, sent, sends.Load())
		require.NoError(t, s.cfg.Transport.Close())
	})
}

// TestES6OnceAndInOrder: each queue pair is destroyed once, before the device.
func TestES6OnceAndInOrder(t *testing.T) {
	inBubbles(t, 1000, func(t *testing.T, seed uint64) {
		w := newWorld(seed, 3, fake.Config{}, nil)
		w.net.Inject(fake.Fault{Point: fake.AtDestroy, Chance: 0.3, Err: errors.New("try again")})
		for round := range 6 {
			r, err := w.nodes[0].now().Wait(Peer(1+round%2), soon())
			require.NoError(t, err)
			require.ErrorIs(t, w.nodes[0].dev.Close(), transport.ErrBusy)
			w.nodes[0].now().Retire(r)
			w.nodes[0].now().Retire(r)
		}
		require.NoError(t, w.close())
		for _, nd := range w.nodes {
			c := nd.dev.Counts()
			require.Equal(t, c.QueuePairsCreated, c.QueuePairsDestroyed)
		}
	})
}
