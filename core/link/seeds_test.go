package link

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// exchange sends messages both ways over a carrier that keeps no order and lets no
// message wait for a receive; readers are slow at times. Each message is the next one,
// whole, whatever receive it came into.
func exchange(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{RingBytes: MinRingBytes << rng.IntN(4), NumMessages: 2 + rng.IntN(15)}
	net := fake.New(fake.Config{Seed: seed, NoReceiveTimeout: time.Nanosecond})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.4, MaxDelay: time.Duration(1+rng.IntN(2000)) * time.Microsecond})
	net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.4, MaxDelay: time.Duration(1+rng.IntN(2000)) * time.Microsecond})
	a, b := pair(t, net, cfg)
	converse(t, seed, 40+rng.IntN(100), a, b)
	require.NoError(t, a.link.Err())
	require.NoError(t, b.link.Err())
}

// converse sends so many messages each way.
func converse(t *testing.T, seed uint64, num int, a, b *end) {
	done := make(chan bool, 4)
	for i, way := range [][2]*end{{a, b}, {b, a}} {
		go func() {
			defer func() { done <- true }()
			rng := rand.New(rand.NewPCG(seed, uint64(i+1)))
			for n := range num {
				way[0].send(t, message(rng, n, a.MaxMessageBytes()))
			}
		}()
		go func() {
			defer func() { done <- true }()
			rng, pauses := rand.New(rand.NewPCG(seed, uint64(i+1))), rand.New(rand.NewPCG(seed, uint64(i+10)))
			for n := range num {
				want := message(rng, n, a.MaxMessageBytes())
				if got := way[1].receive(t); string(got) != string(want) {
					t.Errorf("message %d of %d bytes is another one, of %d", n, len(want), len(got))
				}
				if pauses.IntN(8) == 0 {
					time.Sleep(time.Duration(pauses.IntN(20)) * time.Millisecond)
				}
				way[1].Release(way[1].peer)
			}
		}()
	}
	for range 4 {
		<-done
	}
}

// TestCO7CO12Seeds: under many seeds, in bubbles with a fake clock. A message that finds
// no receive ends the link (CO7), and one in another's place is not the next one (CO12).
func TestCO7CO12Seeds(t *testing.T) {
	first := seedOf(t)
	for i := range testenv.NumSeeds(t, 100) {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("MOEWIRE_TEST_SEED=%d", first+i)
				}
			}()
			exchange(t, first+i)
		})
	}
}

// TestReceivesSuffice: one side sees none of what comes for an hour, and there
// comes as much as may: a path probe, every message, every grant. Each finds a receive.
func TestReceivesSuffice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const depth = 3
		net := fake.New(fake.Config{Seed: 1, NoReceiveTimeout: time.Nanosecond})
		a, b := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: depth})
		for range depth {
			b.send(t, []byte("b"))
		}
		blind := b.poll.Carrier().(*fake.Transport)
		held := net.Inject(fake.Fault{Point: fake.AtComplete, Transport: blind, Op: transport.OpRecvImm, MinDelay: time.Hour})
		require.NoError(t, a.link.Try(time.Now().Add(time.Minute)))
		for range depth {
			a.send(t, []byte("a"))
			a.receive(t)
			a.Release(1)
			time.Sleep(time.Second) // the grant is there: the next one is for itself
		}
		require.Zero(t, b.link.send.acked.Load())
		require.Equal(t, receives(depth), held.Struck())
		time.Sleep(time.Hour)
		for range depth {
			require.Equal(t, "a", string(b.receive(t)))
			b.Release(0)
		}
		require.EqualValues(t, depth, b.link.send.acked.Load())
		require.NoError(t, a.link.Err())
		require.NoError(t, b.link.Err())
	})
}
