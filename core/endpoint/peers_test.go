package endpoint

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// manyPeers is two stores that know each other by many names: peer n of the one is
// peer n of the other.
func manyPeers(m mutant, seed uint64, maxPeers [2]int) *world {
	return manyPeersOf(m, seed, fake.Config{}, func(at int, c *Config) { c.MaxPeers = maxPeers[at] })
}

func manyPeersOf(m mutant, seed uint64, network fake.Config, cfg func(at int, c *Config)) *world {
	at := 0
	var w *world
	w = brokenWorld(m, seed, 2, network, func(c *Config) {
		other := 1 - at
		c.Send = func(name Peer, n Handshake) {
			w.post.carry(func(n Handshake) { w.nodes[other].now().Deliver(name, n) }, n)
		}
		cfg(at, c)
		at++
	})
	return w
}

func (s *Store) numPeers() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.pairs)
}

// come connects to peers that are many times as many as are remembered; some
// come again after they were forgotten, here or there.
func come(w *world, numPeers int, testTimeout time.Duration) error {
	a := w.nodes[0].now()
	for i := range numPeers {
		names := []Peer{Peer(i)}
		if i%5 == 4 {
			names = append(names, Peer(i/2), Peer(i-3))
		}
		for _, name := range names {
			r, err := a.Wait(name, time.Now().Add(testTimeout))
			if err != nil {
				return fmt.Errorf("peer %d, after %d: %w", name, i, err)
			}
			if _, err := a.PostSend(r, []transport.SendRequest{{Op: transport.OpSend}}); err != nil && !errors.Is(err, transport.ErrState) {
				return fmt.Errorf("peer %d: %w", name, err)
			}
		}
		for k, nd := range w.nodes {
			if n := nd.now().numPeers(); n > nd.now().cfg.MaxPeers {
				return fmt.Errorf("node %d remembers %d peers", k, n)
			}
		}
	}
	return nil
}

// TestPeersComeAndGo: 10 000 peers, one after another, get their connections
// from a store that remembers 16, and 64 at the other end.
func TestPeersComeAndGo(t *testing.T) { synctest.Test(t, peersComeAndGo) }

func peersComeAndGo(t *testing.T) {
	numPeers := 10_000
	if testing.Short() {
		numPeers = 500
	}
	w := manyPeers(sound, seedOf(t), [2]int{16, 64})
	require.NoError(t, come(w, numPeers, testTimeout))
	require.Greater(t, w.nodes[0].now().Stats().Forgotten, uint64(numPeers/2))
	require.Greater(t, w.nodes[1].now().Stats().Forgotten, uint64(numPeers/2))
	require.NoError(t, w.close())
}

// checkForgotten: one end forgets what the other remembers.
func checkForgotten(m mutant, seed uint64) error {
	w := manyPeers(m, seed, [2]int{6, 1000})
	wait := testTimeout
	if m != sound {
		wait = time.Second
	}
	return errors.Join(come(w, 25, wait), w.close())
}

func TestForgotten(t *testing.T) {
	seed := seedOf(t)
	for i := range uint64(10) {
		require.NoError(t, checkForgotten(sound, seed+i))
	}
}

// TestWhoAwaitsRoomIsNotForgotten: a peer for which another one is evicted is remembered
// until that place is free, so that it evicts no more.
func TestWhoAwaitsRoomIsNotForgotten(t *testing.T) {
	now := time.Now()
	cfg := Config{MaxPeers: 2, DrainFor: time.Second, Now: func() time.Time { return now }}
	s := &Store{pairs: map[Peer]*pair{}, entries: []*entry{newEntry()}, cfg: cfg}
	s.idle.init()
	for id := range Peer(2) {
		_, err := s.pairOf(id)
		require.NoError(t, err)
	}
	s.entries[0].enter(retiring)
	s.entries[0].since = now
	s.pairs[0].evicted = Ref{0, s.entries[0].gen()}
	_, err := s.pairOf(2)
	require.NoError(t, err)
	require.NotNil(t, s.pairs[0], "it was heard of least lately, but waits")
	require.Nil(t, s.pairs[1])
	now = now.Add(2 * time.Second) // the place does not come free
	_, err = s.pairOf(3)
	require.NoError(t, err)
	require.Nil(t, s.pairs[0])
}

// TestNobodyToForget: a peer that has a connection, or a pause, is not forgotten.
func TestNobodyToForget(t *testing.T) {
	now := time.Now()
	s := &Store{pairs: map[Peer]*pair{}, cfg: Config{MaxPeers: 3, Now: func() time.Time { return now }}}
	s.idle.init()
	for id := range Peer(3) {
		_, err := s.pairOf(id)
		require.NoError(t, err)
	}
	s.attempt(s.pairs[0], 7)
	s.pairs[1].give(errors.New("no route"), now, time.Second)
	s.pairs[2].give(errors.New("no route"), now, time.Minute)
	_, err := s.pairOf(3)
	require.ErrorIs(t, err, transport.ErrWouldBlock)
	now = now.Add(2 * time.Second)
	_, err = s.pairOf(3)
	require.NoError(t, err)
	require.Nil(t, s.pairs[1], "its pause was over")
	require.NotNil(t, s.pairs[2])
	now = now.Add(time.Hour)
	_, err = s.pairOf(2) // it was heard of
	require.NoError(t, err)
	_, err = s.pairOf(4)
	require.NoError(t, err)
	require.Nil(t, s.pairs[3], "the one that was heard of least lately")
	require.NotNil(t, s.pairs[0], "it has a connection")
}
