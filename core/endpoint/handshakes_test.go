package endpoint

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// checkReady (ES13): no connection is live before the peer's end is.
func checkReady(m mutant, seed uint64) error {
	w := brokenWorld(m, seed, 2, fake.Config{}, nil)
	gate := fake.NewGate()
	w.net.Inject(fake.Fault{Point: fake.AtConnect, Transport: w.nodes[1].dev, Gate: gate})
	_, early := w.nodes[0].now().Wait(1, time.Now().Add(50*time.Millisecond))
	gate.Open()
	_, delayed := w.nodes[0].now().Wait(1, waitFor(m))
	if err := w.close(); err != nil {
		return err
	}
	if early == nil || delayed != nil {
		return fmt.Errorf("before the peer was ready %v, afterwards %v", early, delayed)
	}
	return nil
}

// lone is a store in its second life, with the address of an endpoint of its one
// peer, which says what the test says, and the handshakes to it.
func lone(seed uint64) (s *Store, theirs []byte, handshakes chan Handshake, err error) {
	net, spec := fake.New(fake.Config{Seed: seed}), transport.EndpointSpec{SendDepth: 1, RecvDepth: 1}
	dev, peer := net.Transport(), net.Transport()
	ep, err := peer.NewEndpoint(spec)
	if err != nil {
		return nil, nil, nil, err
	}
	handshakes = make(chan Handshake, 64)
	s, err = Open(Config{
		Transport: dev, Cap: 2, Epoch: 2, Spec: spec, Send: func(_ Peer, n Handshake) { handshakes <- n },
	})
	return s, ep.Local(), handshakes, err
}

func nextHandshake(handshakes chan Handshake) (Handshake, error) {
	select {
	case n := <-handshakes:
		return n, nil
	case <-time.After(testTimeout):
		return Handshake{}, errors.New("no handshake")
	}
}

// checkUnseen (ES13): what a peer said of an endpoint that was connected to a
// former one of ours is not what the next one is connected to.
func checkUnseen(m mutant, seed uint64) error {
	s, theirs, handshakes, err := lone(seed)
	if err != nil {
		return err
	}
	defer s.Close(soon())
	if _, err := s.Get(1); !errors.Is(err, ErrConnecting) {
		return err
	}
	ours, err := nextHandshake(handshakes)
	if err != nil {
		return err
	}
	s.Deliver(1, Handshake{Epoch: 1, Gen: 5, Address: theirs, SeenEpoch: ours.Epoch, SeenGen: ours.Gen, Ready: true})
	r, err := s.Wait(1, waitFor(m))
	if err != nil {
		return err
	}
	s.Retire(r)
	for {
		if _, err := s.Get(1); !errors.Is(err, ErrConnecting) {
			return err
		}
		if ours, err = nextHandshake(handshakes); err != nil {
			return err
		}
		if len(ours.Address) > 0 && ours.Gen > 2 {
			break
		}
	}
	time.Sleep(5 * time.Millisecond)
	for {
		select {
		case n := <-handshakes:
			if n.Ready && n.Gen == ours.Gen {
				return errors.New("connected to an endpoint that has had its connection")
			}
			continue
		default:
			return nil
		}
	}
}

func TestFormerLife(t *testing.T) { require.NoError(t, checkFormerLife(sound, seedOf(t))) }

func TestUnseen(t *testing.T) { require.NoError(t, checkUnseen(sound, seedOf(t))) }

func TestReady(t *testing.T) { require.NoError(t, checkReady(sound, seedOf(t))) }

// TestStaleHandshake: a handshake from before changes nothing.
func TestStaleHandshake(t *testing.T) {
	w := testWorld(t, 2, fake.Config{}, nil)
	a := w.nodes[0]
	r := a.connect(t, 1)
	a.now().Deliver(1, Handshake{Epoch: 0, Gen: 99, Address: []byte("x")})
	a.now().Deliver(1, Handshake{Epoch: 1, Gen: 0, Address: []byte("x")})
	require.EqualValues(t, 2, a.now().Stats().StaleHandshakes)
	require.Equal(t, r, a.connect(t, 1))
}

func FuzzParseHandshake(f *testing.F) {
	n := Handshake{Epoch: 1, Gen: 2, SeenEpoch: 3, SeenGen: 4, Ready: true, Asks: true, Address: []byte("here")}
	f.Add(n.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ParseHandshake(b)
		if err != nil {
			require.ErrorIs(t, err, ErrHandshake)
			return
		}
		require.Equal(t, b, n.Append(nil))
	})
}
