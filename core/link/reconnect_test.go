package link

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// stormy lets connections break in all ways that there are, while messages go
// both ways over a carrier that keeps no order.
func stormy(t *testing.T, seed uint64) (reconnects uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{RingBytes: MinRingBytes << rng.IntN(4), NumMessages: 2 + rng.IntN(15)}
	net := fake.New(fake.Config{Seed: seed, NoReceiveTimeout: time.Nanosecond, RetryTimeout: 5 * time.Millisecond})
	slow := time.Duration(rng.IntN(3000)) * time.Microsecond
	a, b, _ := reconnectable(t, net, cfg, seed, slow)
	patient(a, b)
	defer func() { t.Log(a.link.Err(), b.link.Err()) }()
	for _, p := range []fake.Point{fake.AtConnect, fake.AtCreate, fake.AtRetire, fake.AtDestroy} {
		t.Cleanup(net.Inject(fake.Fault{Point: p, Chance: 0.03, Err: errFaulty}).Remove) // before all is closed
	}
	net.Inject(fake.Fault{Point: fake.AtPostSend, Chance: 0.01, Err: errFaulty})
	net.Inject(fake.Fault{Point: fake.AtPostRecv, Chance: 0.002, Err: errFaulty})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.01, Status: transport.StatusUnreachable})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.01, Drop: true})
	net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.01, Status: transport.StatusOther})
	net.Inject(fake.Fault{Point: fake.AtWire, Chance: 0.4, MaxDelay: time.Duration(1+rng.IntN(2000)) * time.Microsecond})
	net.Inject(fake.Fault{Point: fake.AtComplete, Chance: 0.4, MaxDelay: time.Duration(1+rng.IntN(2000)) * time.Microsecond})
	stop, stopped := make(chan bool), make(chan bool)
	go func() { // a queue pair fails, on one side or, at the same moment, on both
		defer close(stopped)
		rng := rand.New(rand.NewPCG(seed, 3))
		for inARow := 0; ; inARow++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(1+rng.IntN(50)) * time.Millisecond):
			}
			if !a.link.Broken() && !b.link.Broken() {
				inARow = 0
			} else if inARow > 3 {
				continue // attempts are bounded
			}
			which := 1 + rng.IntN(3)
			for i, e := range []*end{a, b} {
				if which>>i&1 == 1 {
					_ = e.link.endpoint().Retire()
				}
			}
		}
	}()
	converse(t, seed, 40+rng.IntN(100), a, b)
	close(stop)
	<-stopped
	sound(t, a, b)
	return a.link.Stats().Reconnects + b.link.Stats().Reconnects
}

// TestReconnectSeeds: whatever breaks and whenever, every message arrives once,
// whole, in its order.
func TestReconnectSeeds(t *testing.T) {
	first, reconnects, num := seedOf(t), uint64(0), testenv.NumSeeds(t, 40)
	for i := range num {
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("MOEWIRE_TEST_SEED=%d", first+i)
				}
			}()
			reconnects += stormy(t, first+i)
		})
	}
	t.Logf("%d reconnects", reconnects)
	require.Greater(t, reconnects, num)
}

// TestReconnectAtEveryPoint: the connection breaks at one request after the other,
// before its bytes have moved, or when they have.
func TestReconnectAtEveryPoint(t *testing.T) {
	for _, fault := range []fake.Fault{
		{Point: fake.AtWire, Status: transport.StatusUnreachable},
		{Point: fake.AtComplete, Op: transport.OpWriteImm, Status: transport.StatusOther},
		{Point: fake.AtComplete, Op: transport.OpRecvImm, Status: transport.StatusLocal},
	} {
		struck := 1
		for fault.Skip = 0; struck > 0; fault.Skip++ {
			synctest.Test(t, func(t *testing.T) {
				net := fake.New(fake.Config{Seed: uint64(fault.Skip), NoReceiveTimeout: time.Nanosecond})
				a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 3}, 1, time.Millisecond)
				fault.Times = 1
				once := net.Inject(fault)
				converse(t, 1, 12, a, b)
				sound(t, a, b)
				struck = once.Struck()
			})
		}
		require.Greater(t, fault.Skip, 20)
	}
}

// TestReconnectWithoutAnswer: of a peer that says nothing the link has failed after
// the bound, not before, and then Reserve says would-block as ever.
func TestReconnectWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, posts := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		posts[0].lose()
		require.NoError(t, a.link.endpoint().Retire())
		time.Sleep(within - time.Millisecond)
		require.True(t, a.link.Broken())
		require.NoError(t, a.link.Err())
		time.Sleep(20 * time.Millisecond)
		require.ErrorContains(t, a.link.Err(), "was not reconnected")
		_, err := a.Reserve(1, 8)
		require.ErrorIs(t, err, transport.ErrWouldBlock)
	})
}

// TestReconnectRefused: a link that has failed for good on one side, because its
// rank is no member any more for instance, is not reconnected by the other.
func TestReconnectRefused(t *testing.T) {
	errOut := errors.New("out")
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, time.Millisecond)
		a.link.Break(errOut)
		time.Sleep(100 * time.Millisecond)
		require.ErrorIs(t, a.link.Err(), errOut)
		require.Error(t, b.link.Err())
		require.Zero(t, a.link.Stats().Reconnects+b.link.Stats().Reconnects)
	})
	synctest.Test(t, func(t *testing.T) { // in the middle of it
		a, b, _ := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, time.Second)
		require.NoError(t, b.link.endpoint().Retire())
		eventually(t, b.link.Broken)
		a.link.Break(errOut)
		time.Sleep(within / 2)
		require.ErrorIs(t, b.link.Err(), errRefused)
	})
}

// TestReconnectStops: when the peer has ended, no side waits for it; nor does Close.
func TestReconnectStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, posts := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		for _, p := range posts {
			p.lose()
		}
		a.link.StopReconnecting(domain.ErrExited)
		require.NoError(t, a.link.Err(), "it carries messages still")
		require.NoError(t, a.link.endpoint().Retire())
		synctest.Wait()
		require.Error(t, a.link.Err(), "the first break is the last")
		require.NoError(t, b.link.endpoint().Retire())
		eventually(t, b.link.Broken)
		begin := time.Now()
		require.NoError(t, b.link.Close(begin.Add(within)))
		require.Less(t, time.Since(begin), within/10)
	})
	synctest.Test(t, func(t *testing.T) {
		a, _, posts := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		posts[0].lose()
		require.NoError(t, a.link.endpoint().Retire())
		eventually(t, a.link.Broken)
		a.lost = func(int) error { return domain.ErrExited }
		_, err := a.Reserve(1, 8)
		require.ErrorIs(t, err, domain.ErrExited)
		a.link.StopReconnecting(domain.ErrExited)
		require.ErrorIs(t, a.link.Err(), domain.ErrExited)
	})
}

// TestReconnectBounded: connections over which nothing gets through are bounded in
// number, however quickly they break.
func TestReconnectBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		created := net.Inject(fake.Fault{Point: fake.AtCreate, Gate: openGate()})
		net.Inject(fake.Fault{Point: fake.AtWire, Status: transport.StatusUnreachable})
		require.NoError(t, a.link.endpoint().Retire())
		time.Sleep(within - time.Second)
		require.ErrorIs(t, errors.Join(a.link.Err(), b.link.Err()), errNoProgress)
		require.Error(t, a.link.Err())
		require.Error(t, b.link.Err())
		require.LessOrEqual(t, created.Struck(), 2*maxTries+2)
	})
}

// TestReconnectOutlastsAPort: attempts that lead to no connection, because one side
// cannot make one for some time, are bounded by time alone; the other side is
// overtaken by them all the while.
func TestReconnectOutlastsAPort(t *testing.T) {
	for _, point := range []fake.Point{fake.AtCreate, fake.AtConnect} {
		for _, numSides := range []int{1, 2} {
			synctest.Test(t, func(t *testing.T) {
				net := fake.New(fake.Config{Seed: 1})
				a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, time.Millisecond)
				for _, e := range []*end{a, b}[:numSides] {
					down := net.Inject(fake.Fault{Point: point, Transport: e.poll.carrier.(*fake.Transport), Err: errFaulty})
					time.AfterFunc(within/3, down.Remove)
				}
				require.NoError(t, b.link.endpoint().Retire())
				time.Sleep(within / 4)
				require.True(t, b.link.Broken(), "%v, %d sides", point, numSides)
				sound(t, a, b)
				converse(t, 1, 12, a, b)
			})
		}
	}
}

// TestReconnectWaitsForResources: a side that can make no endpoint for a while pauses
// between its attempts, though the peer has offered one long ago.
func TestReconnectWaitsForResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		device := a.poll.carrier.(*fake.Transport)
		scarce := net.Inject(fake.Fault{Point: fake.AtCreate, Transport: device, Err: transport.ErrNoResource})
		require.NoError(t, b.link.endpoint().Retire())
		time.Sleep(500 * time.Millisecond)
		require.Greater(t, scarce.Struck(), 1)
		scarce.Remove()
		sound(t, a, b)
		require.EqualValues(t, 1, a.link.Stats().Reconnects)
	})
}

// TestReconnectOfferWhileItFails: an offer that comes while an attempt is failing is
// taken up without the pause.
func TestReconnectOfferWhileItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		create := fake.Fault{Point: fake.AtCreate, Transport: a.poll.carrier.(*fake.Transport)}
		scarce := create
		scarce.Err, scarce.Times = transport.ErrNoResource, 10 // from now on the pause is retryMost
		net.Inject(scarce)
		slow := create
		slow.Err, slow.Times, slow.Gate = transport.ErrNoResource, 1, fake.NewGate()
		net.Inject(slow)
		create.Gate = openGate()
		created := net.Inject(create)
		require.NoError(t, a.link.endpoint().Retire())
		<-slow.Gate.Arrived()
		require.NoError(t, b.link.endpoint().Retire())
		time.Sleep(retryMost) // its offer comes
		slow.Gate.Open()
		time.Sleep(retryMost / 2)
		require.Equal(t, 1, created.Struck())
		sound(t, a, b)
	})
}

func openGate() *fake.Gate {
	g := fake.NewGate()
	g.Open()
	return g
}

// TestReconnectWrongNumbers: a peer that claims to have what it cannot have, or
// takes back what it has released, ends the link.
func TestReconnectWrongNumbers(t *testing.T) {
	for _, n := range [][2]uint64{{3, 0}, {1, 2}, {0, 0}, {1 << 60, 1 << 59}} {
		s := &sender{cfg: &Config{RingBytes: MinRingBytes}, longest: 8}
		s.init(4)
		s.sent.Store(2)
		s.posted.Store(2)
		s.acked.Store(1)
		require.False(t, s.goBack(n[0], n[1]), "%v", n)
	}
}

// TestReconnectMessages: what is encoded is what is parsed; anything else is refused.
func TestReconnectMessages(t *testing.T) {
	for _, m := range []reconnectMessage{
		{kind: reconnectOffer, number: 7, have: 5, released: 3, offer: []byte("offer")},
		{kind: reconnectLinked, number: 1 << 60}, {kind: reconnectRefused},
	} {
		b := m.encode()
		got, err := parseReconnectMessage(b)
		require.NoError(t, err)
		require.Equal(t, m, got)
		_, err = parseReconnectMessage(append(b[:reconnectShort:reconnectShort], make([]byte, MaxReconnectBytes)...))
		require.ErrorIs(t, err, domain.ErrMetadata)
	}
	for _, b := range [][]byte{nil, {reconnectLinked}, make([]byte, 9), append([]byte{reconnectOffer}, make([]byte, 20)...)} {
		_, err := parseReconnectMessage(b)
		require.ErrorIs(t, err, domain.ErrMetadata)
	}
}

// TestReconnectForgetsGrants: a grant that was seen before those in front of it
// went with the connection, as they did: it may come again.
func TestReconnectForgetsGrants(t *testing.T) {
	s := &sender{cfg: &Config{RingBytes: MinRingBytes}, longest: 8}
	s.init(4)
	s.sent.Store(3)
	s.posted.Store(3)
	require.True(t, s.granted(grantOf(1, 1)))
	require.Zero(t, s.acked.Load())
	require.True(t, s.goBack(3, 1))
	require.EqualValues(t, 1, s.acked.Load())
	require.True(t, s.granted(grantOf(1, 2)))
	require.EqualValues(t, 3, s.acked.Load())
}

// TestReconnectWhileSending: what is sent during a break is not posted: the numbers
// go back without it, at the same moment, and it has no write that could end, nor
// one that could be granted, before it is posted.
func TestReconnectWhileSending(t *testing.T) {
	l, set := sunk(t)
	s := &l.send
	for number := range uint64(20_000) { // nothing is outstanding
		require.True(t, s.posting.CompareAndSwap(false, true))
		_, err := set.ReserveAt(1, 8)
		require.NoError(t, err)
		gone := make(chan bool)
		var ready atomic.Bool
		go func() {
			ready.Store(true)
			gone <- s.goBack(number, number)
		}()
		for !ready.Load() {
			runtime.Gosched()
		}
		require.NoError(t, set.Post(1, 8))
		require.True(t, <-gone)
		require.False(t, s.busy[number%s.depth].Load())
		require.False(t, s.granted(grantOf(number, 1)))
		s.posting.Store(false)
		_, err = s.pump()
		require.NoError(t, err)
		require.True(t, s.busy[number%s.depth].Load(), "message %d", number)
		require.True(t, s.completed(number))
		require.True(t, s.granted(grantOf(number, 1)))
	}
}
