package link

import (
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// better is a carrier that is preferred to "fake".
type better struct{ *fake.Transport }

func (better) Name() string { return "better" }

// couple is a pair with links that can go over from one network to another.
type couple struct {
	a, b    *end
	nets    [2]*fake.Network
	devices [2]*fake.Transport // of the first network
	posts   [2]*post

	mu   sync.Mutex
	left [2][]string // what each side was told
}

func newCouple(t *testing.T, cfg Config, seed uint64, slow time.Duration, tries int) *couple {
	net := fake.Config{Seed: seed, NoReceiveTimeout: time.Nanosecond, RetryTimeout: 5 * time.Millisecond}
	return newCoupleOver(t, [2]*fake.Network{fake.New(net), fake.New(net)}, cfg, seed, slow, tries)
}

func newCoupleOver(t *testing.T, nets [2]*fake.Network, cfg Config, seed uint64, slow time.Duration, tries int) *couple {
	c := &couple{nets: nets}
	for i, e := range []**end{&c.a, &c.b} {
		c.devices[i] = nets[0].Transport()
		*e = newEnd(t, better{c.devices[i]}, i, cfg, nets[1].Transport())
	}
	meet(t, c.a, c.b)
	c.posts = [2]*post{newPost(t, seed, slow, c.b.link), newPost(t, seed+1, slow, c.a.link)}
	for i, e := range []*end{c.a, c.b} {
		e.link.Reconnect(Reconnecting{Within: within, Tries: tries, Send: c.posts[i].say, WentOver: func(from string, why error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.left[i] = append(c.left[i], from)
			t.Logf("rank %d has left %s: %v", i, from, why)
		}})
	}
	return c
}

func (c *couple) abandoned() [2][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// isOver: both sides use the other carrier, and were told so once.
func (c *couple) isOver(t *testing.T) {
	for _, e := range []*end{c.a, c.b} {
		eventually(t, func() bool { name, _ := e.link.Carrier(); return name == "fake" })
	}
	sound(t, c.a, c.b)
	synctest.Wait()
	require.Equal(t, [2][]string{{"better"}, {"better"}}, c.abandoned())
}

// deaths are the ways in which a carrier fails for good on one side.
var deaths = map[string]func(c *couple, side int){
	"the device says so": func(c *couple, side int) {
		c.nets[0].Raise(c.devices[side], transport.Event{Kind: transport.EventDeviceDown, Detail: "gone"})
	},
	"no endpoint is left": func(c *couple, side int) {
		c.nets[0].Inject(fake.Fault{Point: fake.AtCreate, Transport: c.devices[side], Err: transport.ErrNoResource})
		_ = []*end{c.a, c.b}[side].link.endpoint().Retire()
	},
	"nothing connects": func(c *couple, side int) {
		c.nets[0].Inject(fake.Fault{Point: fake.AtConnect, Transport: c.devices[side], Err: errFaulty})
		_ = []*end{c.a, c.b}[side].link.endpoint().Retire()
	},
	"nothing arrives": func(c *couple, side int) {
		c.nets[0].Inject(fake.Fault{Point: fake.AtWire, Transport: c.devices[side], Status: transport.StatusUnreachable})
	},
	"no answer": func(c *couple, side int) { c.nets[0].SetUnresponsive(c.devices[side], true) },
}

// weather makes a network lose, delay and refuse things, until calm is called.
func weather(t *testing.T, net *fake.Network, rng *rand.Rand) (calm func()) {
	slow := func() time.Duration { return time.Duration(1+rng.IntN(2000)) * time.Microsecond }
	faults := []fake.Fault{
		{Point: fake.AtPostSend, Chance: 0.01, Err: errFaulty},
		{Point: fake.AtWire, Chance: 0.01, Drop: true},
		{Point: fake.AtComplete, Chance: 0.01, Status: transport.StatusOther},
		{Point: fake.AtWire, Chance: 0.4, MaxDelay: slow()}, {Point: fake.AtComplete, Chance: 0.4, MaxDelay: slow()},
	}
	for _, p := range []fake.Point{fake.AtConnect, fake.AtCreate, fake.AtRetire, fake.AtDestroy} {
		faults = append(faults, fake.Fault{Point: p, Chance: 0.03, Err: errFaulty})
	}
	var all []*fake.Injection
	for _, f := range faults {
		all = append(all, net.Inject(f))
	}
	calm = func() {
		for _, i := range all {
			i.Remove()
		}
	}
	t.Cleanup(calm) // before all is closed
	return calm
}

// dieSomewhere lets the better carrier fail for good while messages go both ways, over
// networks that lose and delay.
func dieSomewhere(t *testing.T, seed uint64, death func(c *couple, side int)) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{RingBytes: MinRingBytes << rng.IntN(4), NumMessages: 2 + rng.IntN(15)}
	c := newCouple(t, cfg, seed, time.Duration(rng.IntN(3000))*time.Microsecond, 1<<20)
	calm := weather(t, c.nets[0], rng)
	weather(t, c.nets[1], rng)
	dead := make(chan bool)
	side, at := rng.IntN(2), time.Duration(rng.IntN(200))*time.Millisecond
	go func() {
		defer close(dead)
		time.Sleep(at)
		calm() // of faults that strike at one point, the first one wins
		death(c, side)
	}()
	converse(t, seed, 40+rng.IntN(100), c.a, c.b)
	<-dead
	converse(t, seed+1, 20, c.a, c.b)
	c.isOver(t)
}

// TestGoesOverSeeds: whatever way the better carrier fails, and whenever, every message
// arrives once, whole, in its order, and both sides agree on the other carrier.
func TestGoesOverSeeds(t *testing.T) {
	first := seedOf(t)
	for name, death := range deaths {
		for i := range testenv.NumSeeds(t, 12) {
			synctest.Test(t, func(t *testing.T) {
				defer func() {
					if t.Failed() {
						t.Logf("MOEWIRE_TEST_SEED=%d: %s", first+i, name)
					}
				}()
				dieSomewhere(t, first+i, death)
			})
		}
	}
}

// TestGoesOverAtEveryPoint: the better carrier fails for good at one request after the
// other, before its bytes have moved, or when they have.
func TestGoesOverAtEveryPoint(t *testing.T) {
	for _, fault := range []fake.Fault{
		{Point: fake.AtWire, Status: transport.StatusUnreachable},
		{Point: fake.AtComplete, Op: transport.OpWriteImm, Status: transport.StatusOther},
		{Point: fake.AtComplete, Op: transport.OpRecvImm, Status: transport.StatusLocal},
	} {
		for fault.Skip = 0; fault.Skip < 24; fault.Skip++ {
			synctest.Test(t, func(t *testing.T) {
				c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 3}, uint64(fault.Skip), time.Millisecond, 0)
				struck := c.nets[0].Inject(fault)
				converse(t, 1, 30, c.a, c.b)
				require.NotZero(t, struck.Struck())
				c.isOver(t)
			})
		}
	}
}

// TestGoesOverInTime: where nothing says that a carrier has failed for good, it has half
// of the time, and the other one the rest. What comes back before that is kept.
func TestGoesOverInTime(t *testing.T) {
	for _, point := range []fake.Point{fake.AtCreate, fake.AtConnect} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, time.Millisecond, 0)
			down := c.nets[0].Inject(fake.Fault{Point: point, Transport: c.devices[0], Err: errFaulty})
			require.NoError(t, c.b.link.endpoint().Retire())
			time.Sleep(within / 3)
			require.True(t, c.b.link.Broken())
			down.Remove()
			sound(t, c.a, c.b)
			require.Equal(t, [2][]string{}, c.abandoned(), "it has come back")

			c.nets[0].Inject(fake.Fault{Point: point, Transport: c.devices[0], Err: errFaulty})
			require.NoError(t, c.b.link.endpoint().Retire())
			time.Sleep(within/2 - time.Second)
			require.Equal(t, [2][]string{}, c.abandoned(), "it may come back")
			time.Sleep(2 * time.Second)
			c.isOver(t)
			converse(t, 1, 12, c.a, c.b)
		})
	}
}

// TestGoesOverAtOnce: a device that has failed as a whole is not waited for, nor are
// connections that lead to nothing.
func TestGoesOverAtOnce(t *testing.T) {
	for _, name := range []string{"the device says so", "nothing arrives"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, time.Millisecond, 4)
			deaths[name](c, 0)
			_ = c.a.link.endpoint().Retire()
			time.Sleep(within / 10)
			c.isOver(t)
			converse(t, 1, 12, c.a, c.b)
		})
	}
}

// TestGoesOverOnlyTogether: where one side's rings cannot be registered with the other
// carrier, no side goes over: a break lasts as long as it may, and a device that has
// failed is the link's end.
func TestGoesOverOnlyTogether(t *testing.T) {
	for side := range 2 {
		for _, name := range []string{"the device says so", "nothing connects"} {
			synctest.Test(t, func(t *testing.T) {
				nets := [2]*fake.Network{fake.New(fake.Config{Seed: 1}), fake.New(fake.Config{Seed: 2})}
				nets[1].Inject(fake.Fault{Point: fake.AtRegister, Skip: 2 * side, Times: 1, Err: transport.ErrNotSupported})
				c := newCoupleOver(t, nets, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
				converse(t, 1, 12, c.a, c.b)
				deaths[name](c, 0)
				if synctest.Wait(); name == "nothing connects" {
					time.Sleep(within - time.Second)
					require.NoError(t, c.a.link.Err())
					time.Sleep(2 * time.Second)
				}
				require.Error(t, c.a.link.Err())
				require.Error(t, c.b.link.Err())
				require.Equal(t, [2][]string{}, c.abandoned())
			})
		}
	}
}

// TestGoesOverToNoneThatFailed: a carrier in standby may fail, which changes nothing as
// long as it is not needed; then the link does not go over to it.
func TestGoesOverToNoneThatFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
		for _, e := range []*end{c.a, c.b} {
			c.nets[1].Raise(e.standby[0].carrier.(*fake.Transport), transport.Event{Kind: transport.EventDeviceDown})
		}
		converse(t, 1, 12, c.a, c.b)
		require.NoError(t, c.a.link.Err())
		deaths["the device says so"](c, 0)
		synctest.Wait()
		require.ErrorIs(t, c.a.link.Err(), errDeviceDown)
		require.Error(t, c.b.link.Err())
	})
}

// TestGoesOverAfterTheDevice: as long as a device does not end what it was given, it may
// still write: the link does not go over, and has failed at its bound.
func TestGoesOverAfterTheDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
		answers := make(chan bool)
		c.a.link.reconnector.mu.Lock()
		c.a.link.ep = &stuckEndpoint{c.a.link.ep, answers}
		c.a.link.reconnector.mu.Unlock()
		deaths["the device says so"](c, 0)
		c.a.link.brokeOn(c.a.link.endpoint(), errFaulty)
		time.Sleep(within + 2*stuckFor)
		require.ErrorIs(t, c.a.link.Err(), os.ErrDeadlineExceeded)
		require.Equal(t, [2][]string{}, c.abandoned())
		close(answers)
	})
}

// TestGoesOverOnce: what the endpoint of the earlier carrier says late changes nothing,
// though the present one has the same number; nor does the earlier carrier's device.
func TestGoesOverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nets := [2]*fake.Network{fake.New(fake.Config{Seed: 1}), fake.New(fake.Config{Seed: 2})}
		other := nets[0].Transport()
		for range 2 { // so that numbers go on where they begin on the other network
			r, err := other.Register(make([]byte, 8), 0)
			require.NoError(t, err)
			require.NoError(t, r.Close())
		}
		require.NoError(t, other.Close())
		c := newCoupleOver(t, nets, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
		old := c.a.link.endpoint()
		deaths["the device says so"](c, 0)
		c.isOver(t)
		require.Equal(t, old.ID(), c.a.link.endpoint().ID())
		c.a.link.tried(old, errFaulty)
		require.False(t, c.a.link.Broken())
		c.a.poll.notice(&transport.Event{Kind: transport.EventEndpointFailed, Endpoint: old.ID()})
		deaths["the device says so"](c, 0)
		synctest.Wait()
		require.EqualValues(t, 1, c.a.link.Stats().Reconnects)
		require.NoError(t, c.a.link.endpoint().Retire())
		c.a.send(t, []byte("one"))
		require.Equal(t, "one", string(c.b.receive(t)))
		c.isOver(t)
	})
}

// TestOffersAnotherCarrier: an offer for a carrier that this side does not have ends the
// link.
func TestOffersAnotherCarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		offer := b.link.Offer()
		copy(offer[offerFixed:], "fame")
		a.link.Deliver((&reconnectMessage{kind: reconnectOffer, number: 1, offer: offer}).encode())
		time.Sleep(time.Second)
		require.ErrorIs(t, a.link.Err(), transport.ErrMismatch)
	})
}

// TestUnreadableOffer: an offer that cannot be read ends the link with that reason, and no
// side leaves its carrier for it.
func TestUnreadableOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
		for _, offer := range [][]byte{nil, []byte("none"), c.b.link.Offer()[:offerFixed+1]} {
			c.a.link.reconnector.offer = reconnectMessage{kind: reconnectOffer, number: 1, offer: offer}
			require.Zero(t, c.a.link.peerWay())
		}
		c.a.link.Deliver((&reconnectMessage{kind: reconnectOffer, number: 2, offer: []byte("none")}).encode())
		time.Sleep(within)
		require.ErrorIs(t, c.a.link.Err(), domain.ErrMetadata)
		name, _ := c.a.link.Carrier()
		require.Equal(t, "better", name)
		require.Equal(t, [2][]string{}, c.abandoned())
	})
}

// TestStandbyFailsLater: what a later offer says of the peer's other carrier counts: if that
// has failed since, this side does not go over to it.
func TestStandbyFailsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouple(t, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0, 0)
		require.True(t, c.a.link.reconnector.peerCan)
		c.nets[1].Raise(c.b.standby[0].carrier.(*fake.Transport), transport.Event{Kind: transport.EventDeviceDown})
		c.a.link.brokeOn(c.a.link.endpoint(), errFaulty)
		eventually(t, func() bool { return c.a.link.Stats().Reconnects == 1 && !c.b.link.Broken() })
		sound(t, c.a, c.b)
		deaths["the device says so"](c, 0)
		synctest.Wait()
		require.ErrorIs(t, c.a.link.Err(), errDeviceDown)
		name, _ := c.a.link.Carrier()
		require.Equal(t, "better", name)
	})
}
