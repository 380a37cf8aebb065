package link

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestReconnectForgetsWrites: a write whose end the earlier carrier never told keeps no
// memory once the peer has released the message.
func TestReconnectForgetsWrites(t *testing.T) {
	l, set := sunk(t)
	s := &l.send
	for range s.depth { // no write ends
		_, err := set.Reserve(1, 8)
		require.NoError(t, err)
		require.NoError(t, set.Post(1, 8))
	}
	require.True(t, s.granted(grantOf(0, s.depth)))
	_, err := s.reserve(8)
	require.ErrorIs(t, err, transport.ErrWouldBlock, "the carrier may still read the memory")
	require.True(t, s.goBack(s.depth, s.depth))
	_, err = s.reserve(8)
	require.NoError(t, err)
}

// TestDoubleWhileReleasing: a message that comes again at the moment when the
// reader has emptied its slot, and has not counted that yet, is not filed.
func TestDoubleWhileReleasing(t *testing.T) {
	l, _ := sunk(t)
	r := &l.recv
	require.True(t, r.arrived(immMessage, 0, 64))
	r.slots[0].Store(0) // release's first step
	require.False(t, r.arrived(immMessage, 0, 64))
	r.released.Store(1) // and its last one
	for n := uint64(1); n <= r.depth; n++ {
		require.True(t, r.arrived(immMessage, n, 64), "message %d", n)
	}
}

// TestReconnectOvertaken: an offer that has come since the attempt looked is for an
// endpoint still to be made: its numbers are not taken over, and nothing connects
// to its address.
func TestReconnectOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4})
		a.send(t, []byte("one"))
		require.Equal(t, "one", string(b.receive(t)))
		connects := net.Inject(fake.Fault{Point: fake.AtConnect, Gate: openGate()})
		later := reconnectMessage{kind: reconnectOffer, number: a.link.reconnector.number + 1, have: 1, released: 1, offer: b.link.Offer()}
		a.link.Deliver(later.encode())
		require.ErrorIs(t, a.link.join(time.Now().Add(testTimeout)), errOvertaken)
		require.Zero(t, a.link.send.acked.Load())
		require.Zero(t, connects.Struck())
		require.NoError(t, a.link.Err())
	})
}

// TestReconnectHolds: no goroutine reconnects a link while another one posts, or a grant
// is under way; afterwards none begins to.
func TestReconnectHolds(t *testing.T) {
	for name, of := range map[string]func(*Link) *atomic.Bool{
		"post":  func(l *Link) *atomic.Bool { return &l.send.posting },
		"grant": func(l *Link) *atomic.Bool { return &l.recv.granting },
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := sunk(t) // its carrier's goroutine does not end with a bubble
			synctest.Test(t, func(t *testing.T) {
				underWay := of(l)
				underWay.Store(true)
				held := make(chan error, 1)
				go func() { held <- l.hold(time.Now().Add(within)) }()
				time.Sleep(within / 2)
				require.Empty(t, held)
				underWay.Store(false)
				require.NoError(t, <-held)
				require.True(t, l.send.posting.Load())
				require.True(t, l.recv.granting.Load())
			})
		})
	}
}

// closable is a sink that has nothing outstanding.
type closable struct{ sink }

func (closable) ID() transport.EndpointID { return 7 }
func (closable) Close() error             { return nil }

// asleep is a carrier that no goroutine polls.
type asleep struct{ transport.Transport }

func (asleep) Wake() {}

// TestReconnectDrains: the poller knows a closed endpoint until it has gone around
// once more: it may have polled completions that it has not looked at.
func TestReconnectDrains(t *testing.T) {
	l, _ := sunk(t)
	poller := l.ways[0].poller
	l.ep, poller.carrier = closable{}, asleep{}
	synctest.Test(t, func(t *testing.T) {
		drained := make(chan error, 1)
		go func() { drained <- l.drain(time.Now().Add(within)) }()
		time.Sleep(within / 2)
		require.Empty(t, drained)
		require.Contains(t, *poller.links.Load(), transport.EndpointID(7))
		poller.rounds.Add(1)
		require.NoError(t, <-drained)
		require.Empty(t, *poller.links.Load())
	})
}
