package fake_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// TestReplay: a seed gives the same run again, another one another.
func TestReplay(t *testing.T) {
	seed := testenv.Seed(t) | 1
	first := play(t, seed, 60)
	require.Equal(t, first, play(t, seed, 60))
	require.NotEqual(t, first, play(t, seed+2, 60))
}

// TestConservation: whatever fails, what was posted ends once, or was lost by
// a fault that says so.
func TestConservation(t *testing.T) {
	seed := testenv.Seed(t)
	n := uint64(2000)
	if testing.Short() {
		n = 200
	}
	for i := range n {
		play(t, seed+i|1, 60)
	}
}

// play makes random calls and returns what came of them.
func play(t *testing.T, seed uint64, numCalls int) string {
	p := &player{scene: newScene(t, fake.Config{Seed: seed, Late: fake.Late(seed % 3), Ordered: seed%5 == 0})}
	p.rand = rand.New(rand.NewPCG(seed, 1))
	p.fault()
	for range numCalls {
		p.call()
	}
	p.end(seed)
	return p.log.String()
}

type player struct {
	*scene
	rand   *rand.Rand
	log    strings.Builder
	lastID uint64
	seen   map[uint64]bool
}

// fault injects one or two faults that strike now and then.
func (p *player) fault() {
	for range 1 + p.rand.IntN(2) {
		f := fake.Fault{
			Point: fake.AtWire, Chance: p.rand.Float64() / 4,
			MaxDelay: time.Duration(p.rand.IntN(200)) * time.Millisecond,
		}
		if p.rand.IntN(2) == 0 {
			f.Point = fake.AtComplete
		}
		switch p.rand.IntN(4) {
		case 0:
			f.Drop = true
		case 1:
			f.Status = transport.Status(p.rand.IntN(int(transport.StatusOther) + 1))
		}
		p.network.Inject(f)
	}
}

func (p *player) call() {
	p.lastID++
	switch p.rand.IntN(8) {
	case 0, 1:
		q := transport.SendRequest{
			ID: p.lastID, Op: transport.OpSend + transport.Opcode(p.rand.IntN(4)),
			Local: p.piece(0, 0, p.rand.IntN(65)), Remote: p.mem[1].Remote(), RemoteOff: p.rand.Uint64N(200),
		}
		n, err := p.ep[0].PostSend([]transport.SendRequest{q})
		fmt.Fprintln(&p.log, "send", n, err)
	case 2, 3:
		n, err := p.ep[1].PostRecv([]transport.RecvRequest{{ID: p.lastID, Local: p.piece(1, 0, 64)}})
		fmt.Fprintln(&p.log, "recv", n, err)
	case 4:
		p.clock.Advance(time.Duration(p.rand.IntN(20)) * time.Millisecond)
	case 5:
		if p.rand.IntN(20) == 0 {
			_ = p.ep[p.rand.IntN(2)].Retire()
		}
	case 6:
		p.take()
	default:
		p.network.Step()
	}
}

// take polls both sides.
func (p *player) take() {
	for at := range p.tr {
		for _, done := range p.poll(at) {
			fmt.Fprintln(&p.log, at, done.ID, done.Op, done.Status, done.NumBytes)
			if p.seen[done.ID] {
				p.t.Errorf("seed %d: two completions of request %d", p.network.Seed(), done.ID)
			}
			if p.seen == nil {
				p.seen = map[uint64]bool{}
			}
			p.seen[done.ID] = true
		}
	}
}

func (p *player) end(seed uint64) {
	for at := range p.ep {
		require.NoError(p.t, p.ep[at].Retire(), "seed %d", seed)
	}
	p.network.Exhaust()
	p.take()
	for at := range p.tr {
		c := p.tr[at].Counts()
		require.Equal(p.t, c.Posted(), c.Ended()+c.Dropped, "seed %d: %+v", seed, c)
		require.Equal(p.t, c.Ended(), c.Polled, "seed %d: %+v", seed, c)
		if err := p.ep[at].Close(); c.Dropped == 0 {
			require.NoError(p.t, err, "seed %d", seed)
		} else {
			require.ErrorIs(p.t, err, transport.ErrBusy, "seed %d", seed)
		}
	}
}

// TestOrder: unordered networks reorder within an endpoint, ordered ones never.
func TestOrder(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		s := newScene(t, fake.Config{Ordered: ordered})
		sorted := true
		for range 20 {
			for id := range uint64(16) {
				s.write(id)
			}
			s.network.Exhaust()
			for i, done := range s.poll(0) {
				sorted = sorted && done.ID == uint64(i)
			}
		}
		require.Equal(t, ordered, sorted)
	}
}

// TestSynctest: a network of its own goroutine in a bubble, where time is fake
// without a Clock.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := fake.New(fake.Config{Seed: testenv.Seed(t), RetryTimeout: time.Hour})
		a, b := network.Transport(), network.Transport()
		ep, err := a.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		unresponsive, err := b.NewEndpoint(transport.EndpointSpec{SendDepth: 1, RecvDepth: 1})
		require.NoError(t, err)
		require.NoError(t, ep.Connect(unresponsive.Local(), time.Now().Add(time.Second)))
		_, err = ep.PostSend([]transport.SendRequest{{ID: 1, Op: transport.OpSend}})
		require.NoError(t, err)
		start := time.Now()
		done := make([]transport.Completion, 1)
		require.NoError(t, a.Wait(2*time.Hour))
		require.Equal(t, time.Hour, time.Since(start))
		n, err := a.Poll(done)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, transport.StatusUnreachable, done[0].Status)
		require.NoError(t, ep.Close())
		require.NoError(t, unresponsive.Close())
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	})
}

// TestWaitByFakeClock ends with the clock that was given.
func TestWaitByFakeClock(t *testing.T) {
	s := newScene(t, fake.Config{})
	ended := make(chan error, 1)
	go func() { ended <- s.tr[0].Wait(time.Hour) }()
	for waiting := true; waiting; {
		s.clock.Advance(time.Minute)
		select {
		case err := <-ended:
			require.NoError(t, err)
			waiting = false
		default:
		}
	}
	require.False(t, s.clock.Now().Before(time.Unix(1, 0).Add(time.Hour)))
}
