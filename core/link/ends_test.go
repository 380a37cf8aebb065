package link

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

const testTimeout = 20 * time.Second

func heap(n int64) (domain.Segment, error) {
	_, slab, err := inproc.New(1, 8)[0].AddSlab(n)
	return slab, err
}

func seedOf(t testing.TB) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("MOEWIRE_TEST_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	t.Logf("MOEWIRE_TEST_SEED=%d", seed)
	return seed
}

// end is one rank of a pair.
type end struct {
	*Set
	link    *Link
	poll    *Poller
	standby []*Poller
	bell    chan struct{}
	peer    int
}

func newEnd(t testing.TB, carrier transport.Transport, rank int, cfg Config, standby ...transport.Transport) *end {
	e := &end{bell: make(chan struct{}, 1), peer: 1 - rank}
	ring := func() {
		select {
		case e.bell <- struct{}{}:
		default:
		}
	}
	e.poll = NewPoller(carrier, ring)
	for _, s := range standby {
		e.standby = append(e.standby, NewPoller(s, ring))
	}
	var err error
	e.link, err = NewLink(e.poll, e.peer, rand.Uint32(), cfg, heap, e.standby...)
	require.NoError(t, err)
	e.Set = NewSet(cfg, heap, func(int) error { return nil }, 0)
	return e
}

// pair connects two ranks over a network.
func pair(t testing.TB, net *fake.Network, cfg Config) (a, b *end) {
	t.Helper()
	a, b = newEnd(t, net.Transport(), 0, cfg), newEnd(t, net.Transport(), 1, cfg)
	meet(t, a, b)
	return a, b
}

// meet connects the links of two ranks, and closes all at the end.
func meet(t testing.TB, a, b *end) {
	t.Helper()
	failed, offers := make(chan error, 1), [2][]byte{a.link.Offer(), b.link.Offer()}
	go func() { failed <- a.link.Connect(offers[1], time.Now().Add(testTimeout)) }()
	require.NoError(t, b.link.Connect(offers[0], time.Now().Add(testTimeout)))
	require.NoError(t, <-failed)
	a.Put([]*Link{nil, a.link})
	b.Put([]*Link{b.link})
	t.Cleanup(func() {
		for _, e := range []*end{a, b} {
			if err := e.link.Close(time.Now().Add(testTimeout)); err != nil {
				t.Error(err)
			}
			for _, p := range append(e.standby, e.poll) {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func (e *end) wait() {
	select {
	case <-e.bell:
	case <-time.After(time.Millisecond):
	}
}

func (e *end) send(t testing.TB, message []byte) {
	for begin := time.Now(); ; e.wait() {
		b, err := e.Reserve(e.peer, int64(len(message)))
		if err == nil {
			copy(b, message)
			require.NoError(t, e.Post(e.peer, int64(len(message))))
			return
		}
		require.ErrorIs(t, err, transport.ErrWouldBlock)
		require.NoError(t, e.link.Err())
		if time.Since(begin) > testTimeout {
			t.Fatal("no room")
		}
	}
}

func (e *end) receive(t testing.TB) []byte {
	for begin := time.Now(); ; e.wait() {
		if m := e.Next(e.peer); m != nil {
			return m
		}
		require.NoError(t, e.link.Err())
		if time.Since(begin) > testTimeout {
			t.Fatal("no message")
		}
	}
}

// message is unlike every other one of its number.
func message(rng *rand.Rand, number int, longest int64) []byte {
	n := 8 + rng.Int64N(1<<rng.IntN(64)&(longest-8)|1)
	b := make([]byte, min(n, longest))
	binary.LittleEndian.PutUint64(b, uint64(number))
	for i := 8; i < len(b); i++ {
		b[i] = byte(number*31 + i)
	}
	return b
}

func eventually(t *testing.T, f func() bool) {
	for begin := time.Now(); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Since(begin) > testTimeout {
			t.Fatal("not yet")
		}
	}
}
