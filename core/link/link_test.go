package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestOrder: messages arrive once each, whole and in order, both ways at once,
// over a carrier that keeps none.
func TestOrder(t *testing.T) {
	seed := seedOf(t)
	for _, cfg := range []Config{
		{RingBytes: MinRingBytes, NumMessages: 2}, {RingBytes: MinRingBytes, NumMessages: 7},
		{RingBytes: 1 << 16, NumMessages: 64},
	} {
		t.Run(fmt.Sprint(cfg), func(t *testing.T) {
			net := fake.New(fake.Config{Seed: seed})
			net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.3, MaxDelay: 300 * time.Microsecond})
			net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.3, MaxDelay: 300 * time.Microsecond})
			a, b := pair(t, net, cfg)
			const num = 800
			done := make(chan bool, 4)
			for i, way := range [][2]*end{{a, b}, {b, a}} {
				go func() {
					defer func() { done <- true }()
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					for n := range num {
						way[0].send(t, message(rng, n, a.MaxMessageBytes()))
					}
				}()
				go func() {
					defer func() { done <- true }()
					rng := rand.New(rand.NewPCG(seed, uint64(i)))
					for n := range num {
						want := message(rng, n, a.MaxMessageBytes())
						require.Equal(t, want, way[1].receive(t), "message %d", n)
						way[1].Release(way[1].peer)
					}
				}()
			}
			for range 4 {
				<-done
			}
			require.Equal(t, uint64(num), a.link.Stats().ReceivedMessages)
		})
	}
}

// TestWouldBlock: at each bound Reserve says so at once, nothing is lost, and
// what is released comes back.
func TestWouldBlock(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4})
	for round := range 20 {
		for i := range 4 {
			a.send(t, []byte{byte(round), byte(i)})
		}
		_, err := a.Reserve(1, 1)
		require.ErrorIs(t, err, transport.ErrWouldBlock, "number of messages")
		for i := range 4 {
			require.Equal(t, []byte{byte(round), byte(i)}, b.receive(t))
			b.Release(0)
		}
		require.Nil(t, b.Next(0))
		a.send(t, make([]byte, MinRingBytes/2))
		_, err = a.Reserve(1, MinRingBytes/2)
		for begin := time.Now(); err == nil && time.Since(begin) < testTimeout; { // the second half
			require.NoError(t, a.Post(1, MinRingBytes/2))
			_, err = a.Reserve(1, MinRingBytes/2)
		}
		require.ErrorIs(t, err, transport.ErrWouldBlock, "bytes")
		for sent := a.link.Stats().SentMessages; b.link.Stats().ReceivedMessages < sent || b.Next(0) != nil; {
			b.receive(t)
			b.Release(0)
		}
	}
	for _, n := range []int64{0, -1, MinRingBytes/2 + 1} {
		_, err := a.Reserve(1, n)
		require.Error(t, err)
		require.False(t, errors.Is(err, transport.ErrWouldBlock))
	}
	eventually(t, func() bool { // the last grants are still on their way
		_, err := a.Reserve(1, 8)
		return err == nil
	})
	require.Error(t, a.Post(1, 9))
}

// TestWorkingSet: a link of which little is used at a time touches little of
// its ring.
func TestWorkingSet(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: 1 << 16, NumMessages: 8})
	for i := range 200 {
		a.send(t, fmt.Appendf(nil, "%01000d", i))
		require.Equal(t, fmt.Sprintf("%01000d", i), string(b.receive(t)))
		b.Release(0)
		eventually(t, func() bool {
			a.link.send.reclaim()
			return a.link.send.tail == a.link.send.sent.Load()
		})
	}
	for _, v := range b.link.recv.ring.Bytes()[1024:] {
		require.Zero(t, v)
	}
}

// TestUntaken: a message counts until the receiver has released it and the
// grant has come; over a link that has failed nothing will come.
func TestUntaken(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: seedOf(t)}), Config{RingBytes: 1 << 16, NumMessages: 8})
	require.Zero(t, a.Untaken())
	a.send(t, []byte("one"))
	a.send(t, []byte("two"))
	b.receive(t)
	require.EqualValues(t, rankset.Of(1), a.Untaken())
	b.Release(0)
	b.receive(t)
	require.EqualValues(t, rankset.Of(1), a.Untaken())
	b.Release(0)
	eventually(t, func() bool { return a.Untaken().Empty() })
	a.send(t, []byte("three"))
	a.link.Break(domain.ErrExited)
	require.Zero(t, a.Untaken())
}

// TestSC8: grants come in any order, some of them twice or late, some for
// messages that were never sent. What counts is how many messages are granted
// without a gap; what was granted and not used is never negative or more than
// the bound.
func TestSC8(t *testing.T) {
	const depth = 8
	rng := rand.New(rand.NewPCG(seedOf(t), 0))
	s := &sender{cfg: &Config{RingBytes: 1 << 20}, longest: 1 << 19}
	s.init(depth)
	base := uint64(numberMask - 100) // the numbers wrap on the way
	s.sent.Store(base)
	s.posted.Store(base)
	s.acked.Store(base)
	type grant struct{ first, num uint64 }
	var coming, gone []grant
	seen, acked, released := map[uint64]bool{}, base, base
	for range 30000 {
		sent := s.sent.Load()
		switch rng.IntN(6) {
		case 0, 1:
			if sent-acked < depth {
				s.sent.Store(sent + 1)
				s.posted.Store(sent + 1)
			}
		case 2:
			if sent > released {
				g := grant{released, 1 + rng.Uint64N(sent-released)}
				coming, released = append(coming, g), released+g.num
			}
		case 3:
			if len(coming) == 0 {
				continue
			}
			i := rng.IntN(len(coming))
			g := coming[i]
			coming = append(coming[:i], coming[i+1:]...)
			require.True(t, s.granted(grantOf(g.first, g.num)))
			for n := range g.num {
				seen[g.first+n] = true
			}
			for ; seen[acked]; acked++ {
				delete(seen, acked)
			}
			gone = append(gone, g)[max(0, len(gone)-100):]
		case 4:
			if len(gone) > 0 {
				g := gone[rng.IntN(len(gone))]
				require.False(t, s.granted(grantOf(g.first, g.num)), "%v again, after %d of %d", g, acked, sent)
			}
		case 5:
			g := grant{sent - rng.Uint64N(sent-released+1), 0}
			g.num = sent - g.first + 1 + rng.Uint64N(maxGranted/2)
			require.False(t, s.granted(grantOf(g.first, g.num)), "%v of %d", g, sent)
		}
		require.Equal(t, acked, s.acked.Load())
		require.LessOrEqual(t, s.sent.Load()-acked, uint64(depth))
		require.LessOrEqual(t, uint64(len(coming)), s.sent.Load()-acked, "each has a receive")
	}
}

// TestDuplicates: a carrier that reports ends twice costs counts, not order.
func TestDuplicates(t *testing.T) {
	net := fake.New(fake.Config{Seed: seedOf(t)})
	a, b := pair(t, net, Config{RingBytes: 1 << 14, NumMessages: 8})
	net.Inject(fake.Fault{Point: fake.AtComplete, Op: transport.OpWriteImm, Chance: 0.3, Duplicate: true})
	for i := range 200 {
		a.send(t, []byte(fmt.Sprint(i)))
		require.Equal(t, fmt.Sprint(i), string(b.receive(t)))
		b.Release(0)
	}
	require.NotZero(t, a.link.Stats().Ignored)
}

// TestFailure: after any bad end the link carries nothing more, says why, and
// what had arrived is still there.
func TestFailure(t *testing.T) {
	for status := transport.StatusFlushed; status <= transport.StatusOther; status++ {
		net := fake.New(fake.Config{Seed: 1})
		a, b := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4})
		a.send(t, []byte("before"))
		b.receive(t)
		net.Inject(fake.Fault{Point: fake.AtWire, Op: transport.OpWriteImm, Status: status})
		a.send(t, []byte("lost"))
		for begin := time.Now(); a.link.Err() == nil && time.Since(begin) < testTimeout; {
			a.wait()
		}
		require.Error(t, a.link.Err(), "status %d", status)
		require.Equal(t, rankset.Of(1), a.Failed())
		_, err := a.Reserve(1, 8)
		require.ErrorIs(t, err, transport.ErrWouldBlock)
		require.Equal(t, []byte("before"), b.Next(0))
	}
}

// TestLostRank: what is known to be lost is an error.
func TestLostRank(t *testing.T) {
	net := fake.New(fake.Config{Seed: 1})
	a, _ := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4})
	var gone atomic.Bool
	a.lost = func(int) error {
		if gone.Load() {
			return domain.ErrExited
		}
		return nil
	}
	a.link.fail(errors.New("test"))
	gone.Store(true)
	_, err := a.Reserve(1, 8)
	require.ErrorIs(t, err, domain.ErrExited)
}

// TestCO7: receives are always posted: a message never finds none, also when
// the reader is slow.
func TestCO7(t *testing.T) {
	net := fake.New(fake.Config{Seed: 1, NoReceiveTimeout: time.Nanosecond})
	a, b := pair(t, net, Config{RingBytes: 1 << 14, NumMessages: 8})
	for range 100 {
		for _, w := range [][2]*end{{a, b}, {b, a}} {
			for range 8 {
				w[0].send(t, []byte("x"))
			}
		}
		for _, w := range [][2]*end{{a, b}, {b, a}} {
			for range 8 {
				w[1].receive(t)
				w[1].Release(w[1].peer)
			}
		}
	}
	require.NoError(t, a.link.Err())
	require.NoError(t, b.link.Err())
}

// TestCO4: rings are released only when the carrier has nothing outstanding any more.
func TestCO4(t *testing.T) {
	net := fake.New(fake.Config{Seed: 1, Late: fake.LateUntilStatus})
	a, _ := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4})
	fault := net.Inject(fake.Fault{Point: fake.AtComplete, MinDelay: 100 * time.Millisecond, MaxDelay: 200 * time.Millisecond})
	a.send(t, []byte("slow"))
	require.ErrorIs(t, a.link.Close(time.Now().Add(5*time.Millisecond)), transport.ErrBusy)
	require.NotNil(t, a.link.ways[0].regions[0], "the memory is kept")
	fault.Remove()
	require.NoError(t, a.link.Close(time.Now().Add(testTimeout)))
}

// TestNoAllocations: in steady state nothing is allocated on either side.
func TestNoAllocations(t *testing.T) {
	l, s := sunk(t)
	n, c := uint64(0), &transport.Completion{Endpoint: 7}
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		if _, err := s.Reserve(1, 100); err != nil || s.Post(1, 100) != nil {
			t.Fatal(err)
		}
		*c = transport.Completion{Endpoint: 7, ID: requestID(idReceive, 0), HasImm: true, Imm: imm(immMessage, 5, n), NumBytes: 100}
		l.ways[0].poller.serve(c) // the same message comes back
		if len(s.Next(1)) != 100 {
			t.Fatal("no message")
		}
		s.Release(1)
		n++
		*c = transport.Completion{Endpoint: 7, ID: requestID(idMessage, n-1)}
		l.ways[0].poller.serve(c)
		*c = transport.Completion{Endpoint: 7, ID: requestID(idReceive, 0), HasImm: true, Imm: imm(immGrant, 5, grantOf(n-1, 1))}
		l.ways[0].poller.serve(c)
		*c = transport.Completion{Endpoint: 7, ID: requestID(idGrant, n)}
		l.ways[0].poller.serve(c)
	}))
	require.Equal(t, n, l.send.acked.Load())
}

func FuzzOffer(f *testing.F) {
	f.Add([]byte(offerMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := parseOffer(b); err == nil {
			require.LessOrEqual(t, len(o.address), transport.MaxAddressBytes)
		} else {
			require.ErrorIs(t, err, domain.ErrMetadata)
		}
	})
}
