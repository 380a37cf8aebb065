package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// storm lets every node connect to all others, more than it has places for,
// post, retire, and be refused, while handshakes are lost and the device fails. It
// returns the first broken invariant.
func storm(seed uint64, m mutant) error {
	const nodes, workers, rounds = 7, 3, 12
	w := brokenWorld(m, seed, nodes, fake.Config{RetryTimeout: 5 * time.Millisecond, NoReceiveTimeout: -1}, func(c *Config) {
		c.MaxPeers = nodes - int(seed%3) // with some, peers are forgotten meanwhile
		// Receives are posted once: more than a storm can send to one peer, as a
		// send without a receive would wait for ever.
		c.Spec.RecvDepth = 2 * 3 * workers * rounds
	})
	w.post.lossy = true
	w.net.Inject(fake.Fault{Point: fake.AtCreate, Chance: 0.05, Err: transport.ErrNoResource})
	w.net.Inject(fake.Fault{Point: fake.AtConnect, Chance: 0.05, Err: errors.New("no route")})
	w.net.Inject(fake.Fault{Point: fake.AtDestroy, Chance: 0.05, Err: errors.New("try again")})
	wire := w.net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.05, Status: transport.StatusUnreachable})
	w.net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.2, MinDelay: time.Millisecond, MaxDelay: 4 * time.Millisecond})
	stop := make(chan struct{})
	places := w.watchPlaces(stop)
	var wg sync.WaitGroup
	problems := make(chan error, nodes*workers)
	for _, nd := range w.nodes {
		for k := range workers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := nd.work(rand.New(rand.NewPCG(seed, uint64(nd.self)*10+uint64(k))), rounds); err != nil {
					problems <- err
				}
			}()
		}
	}
	wg.Wait()
	close(problems)
	close(stop)
	if err := errors.Join(<-problems, <-places); err != nil {
		_ = w.close()
		return err
	}
	wire.Remove()
	err := w.settles()
	if err == nil {
		err = w.exchange()
	}
	return errors.Join(err, w.close())
}

// liveTo returns the live connection to a peer, without asking for one.
func (s *Store) liveTo(p Peer) (r Ref, is bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if pair := s.pairs[p]; pair != nil && pair.index != none {
		e := s.entries[pair.index]
		return Ref{pair.index, e.gen()}, e.state() == live
	}
	return r, false
}

// exchange sends once over every connection that both ends have when all is
// calm: they belong together. (When a handshake of retirement was lost, one end may
// live on until it is used.)
func (w *world) exchange() error {
	for _, nd := range w.nodes {
		s := nd.now()
		for _, other := range w.nodes {
			r, is := s.liveTo(other.self)
			if _, too := other.now().liveTo(nd.self); !is || !too {
				continue
			}
			id := uint64(other.self) + 1
			if _, err := s.PostSend(r, []transport.SendRequest{{ID: id, Op: transport.OpSend}}); err != nil {
				return fmt.Errorf("node %d: %w", nd.self, err)
			}
			status, ok := any(nil), false
			for until := time.Now().Add(5 * time.Second); !ok && time.Now().Before(until); time.Sleep(100 * time.Microsecond) {
				status, ok = nd.sent.Load(id)
			}
			if status != transport.StatusOK {
				return fmt.Errorf("node %d: a send to node %d ended with status %v", nd.self, other.self, status)
			}
		}
	}
	return nil
}

// work connects, posts, and now and then retires.
func (nd *node) work(rng *rand.Rand, rounds int) error {
	s := nd.now()
	for range rounds {
		to := Peer(rng.IntN(len(nd.w.nodes)))
		if to == nd.self {
			continue
		}
		r, err := s.Wait(to, time.Now().Add(20*time.Millisecond))
		if err != nil {
			if !expected(err) {
				return fmt.Errorf("node %d to %d: %w", nd.self, to, err)
			}
			continue
		}
		for range rng.IntN(4) {
			_, err := s.PostSend(r, []transport.SendRequest{{Op: transport.OpSend}})
			if err != nil && !errors.Is(err, transport.ErrState) && !errors.Is(err, transport.ErrWouldBlock) {
				return fmt.Errorf("post: %w", err)
			}
		}
		if rng.IntN(4) == 0 {
			s.Retire(r)
			s.Retire(r) // once more does nothing
		}
		time.Sleep(time.Duration(rng.IntN(500)) * time.Microsecond)
	}
	return nil
}

func expected(err error) bool {
	return errors.Is(err, ErrConnecting) || errors.Is(err, ErrUnreachable) ||
		errors.Is(err, transport.ErrWouldBlock) || errors.Is(err, transport.ErrNoResource)
}

// settles (ES2): without another insert, what is retired goes, and as many
// queue pairs are left as there are connections.
func (w *world) settles() error {
	var s Stats
	var c fake.Counts
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		calm := true
		for _, nd := range w.nodes {
			s, c = nd.now().Stats(), nd.dev.Counts()
			calm = calm && s.Retiring == 0 && s.Quarantined == 0 && s.Connecting == 0 && c.QueuePairs == s.Live
		}
		if calm {
			return nil
		}
	}
	return fmt.Errorf("does not settle: %+v with %d queue pairs", s, c.QueuePairs)
}

// TestStormInBubble: the same, many times, in a bubble with a fake clock.
func TestStormInBubble(t *testing.T) {
	seed := seedOf(t)
	for i := range testenv.NumSeeds(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			require.NoError(t, storm(seed+i, sound), "MOEWIRE_TEST_SEED=%d", seed+i)
		})
	}
}

func TestStorm(t *testing.T) {
	seed := seedOf(t)
	for i := range uint64(3) {
		require.NoError(t, storm(seed+i, sound), "MOEWIRE_TEST_SEED=%d", seed+i)
	}
}
