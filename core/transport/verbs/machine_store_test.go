package verbs_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// stores is two stores of connections over one device, each the other's peer
// by many names.
type stores struct {
	t     *testing.T
	tr    [2]*verbs.Transport
	store [2]*endpoint.Store
	stop  chan struct{}
	ended chan error
}

type controlMessage struct {
	to        int
	name      endpoint.Peer
	handshake endpoint.Handshake
}

func newStores(t *testing.T, bound int) *stores {
	s := &stores{t: t, stop: make(chan struct{}), ended: make(chan error, 3)}
	post := make(chan controlMessage, 1024)
	for i := range s.store {
		s.tr[i] = open(t, verbs.Config{RetryCount: 1, RNRRetryCount: 1, RNRTimer: 1})
		t.Cleanup(func() { require.NoError(t, s.tr[i].Close()) }) // after regions
		var err error
		s.store[i], err = endpoint.Open(endpoint.Config{
			Transport: s.tr[i], Spec: spec, Cap: bound, Epoch: 1, QuarantineCap: bound, ConnectFor: testTimeout,
			Send: func(name endpoint.Peer, n endpoint.Handshake) {
				select {
				case post <- controlMessage{1 - i, name, n}:
				default: // a handshake may be lost
				}
			},
		})
		require.NoError(t, err)
		s.store[i].Start(5 * time.Millisecond)
		go s.poll(i)
	}
	go func() {
		for {
			select {
			case l := <-post:
				s.store[l.to].Deliver(l.name, l.handshake)
			case <-s.stop:
				s.ended <- nil
				return
			}
		}
	}()
	return s
}

func (s *stores) poll(i int) {
	var done [16]transport.Completion
	for {
		select {
		case <-s.stop:
			s.ended <- nil
			return
		default:
		}
		n, err := s.store[i].Poll(done[:], nil)
		if err == nil && n == 0 {
			err = s.tr[i].Wait(5 * time.Millisecond)
		}
		if err != nil {
			s.ended <- err
			return
		}
	}
}

// connect waits until there is a live connection, whatever is in the way.
func (s *stores) connect(name endpoint.Peer) endpoint.Ref {
	s.t.Helper()
	for end := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		r, err := s.store[0].Wait(name, end)
		if err == nil {
			return r
		}
		expected := errors.Is(err, endpoint.ErrUnreachable) || errors.Is(err, transport.ErrNoResource) || errors.Is(err, transport.ErrWouldBlock)
		require.True(s.t, expected && time.Now().Before(end), "peer %d: %v, %+v %+v", name, err, s.store[0].Stats(), s.store[1].Stats())
	}
}

func (s *stores) numLive() int { return s.store[0].Stats().Live + s.store[1].Stats().Live }

func (s *stores) close() {
	s.t.Helper()
	close(s.stop)
	for range 3 {
		require.NoError(s.t, <-s.ended)
	}
	for i := range s.store {
		require.NoError(s.t, s.store[i].Close(time.Now().Add(testTimeout)))
	}
	require.Zero(s.t, numQueuePairs(s.t))
}

// TestES2StoreLeavesNoQueuePair goes through 500 rounds of connecting in another peer's
// place, failing and retiring: the kernel never counts more queue pairs than the caps
// allow, and in the end those of the live connections.
func TestES2StoreLeavesNoQueuePair(t *testing.T) {
	needMachine(t)
	const bound = 3
	require.Zero(t, numQueuePairs(t))
	s := newStores(t, bound)
	region := register(t, s.tr[0], 64)
	remote := register(t, s.tr[1], 64)
	for round := range 500 {
		ref := s.connect(endpoint.Peer(round * 5 % 8))
		request := transport.SendRequest{ID: 1, Op: transport.OpWrite, Remote: remote.Remote(), Local: []transport.Piece{{Region: region, Bytes: 64}}}
		switch round % 5 {
		case 1: // the peer refuses, and the connection fails
			request.Remote.Key ^= 0x5500
		case 2:
			s.store[0].Retire(ref)
		}
		_, err := s.store[0].PostSend(ref, []transport.SendRequest{request})
		require.True(t, err == nil || errors.Is(err, transport.ErrState), "%v", err)
		if round%25 == 0 {
			require.LessOrEqual(t, numQueuePairs(t), 2*bound)
		}
	}
	st := s.store[0].Stats()
	t.Logf("%+v", st)
	require.Greater(t, st.Evicted, uint64(50))
	require.GreaterOrEqual(t, st.Failed, uint64(50))
	eventually(t, "as many queue pairs as live connections", func() bool {
		a, b := s.store[0].Stats(), s.store[1].Stats()
		settled := a.Connecting+a.Retiring+a.Quarantined+b.Connecting+b.Retiring+b.Quarantined == 0
		return settled && numQueuePairs(t) == s.numLive()
	})
	s.close()
}

// TestES4StoreAtTheLimit: where the system gives fewer queue pairs than the
// store may have, idle connections give theirs.
func TestES4StoreAtTheLimit(t *testing.T) {
	needMachine(t)
	const objects = 12 // some are the transports' own
	limited(t, objects)
	s := newStores(t, 16)
	for round := range 24 {
		s.connect(endpoint.Peer(round % 8))
		require.Less(t, numQueuePairs(t), objects)
	}
	t.Logf("%+v %+v", s.store[0].Stats(), s.store[1].Stats())
	require.NotZero(t, s.store[0].Stats().NoResource+s.store[1].Stats().NoResource)
	require.NotZero(t, s.store[0].Stats().Evicted+s.store[1].Stats().Evicted)
	s.close()
}
