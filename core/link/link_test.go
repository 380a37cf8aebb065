package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
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

func eventually(t *testing.T, f func() bool) {
	for begin := time.Now(); !f(); time.Sleep(50 * time.Microsecond) {
		if time.Since(begin) > testTimeout {
			t.Fatal("not yet")
		}
	}
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

// TestStrangeCompletions: completions that come twice, immediates of another
// tag, messages that cannot be, change nothing.
func TestStrangeCompletions(t *testing.T) {
	a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4})
	a.send(t, []byte("one"))
	require.Equal(t, []byte("one"), b.receive(t))
	served := b.poll.rounds.Load()
	b.poll.carrier.Wake()
	eventually(t, func() bool { return b.poll.rounds.Load() > served }) // what follows is the poller's part
	before, sent, acked := b.link.Stats().Ignored, a.link.send.sent.Load(), a.link.send.acked.Load()
	other := b.link.recv.tag ^ 1
	for i, v := range []struct {
		imm   uint32
		bytes uint32
	}{
		{imm(immMessage, b.link.recv.tag, 0), 3}, // the same again
		{imm(immMessage, other, 1), 3},           // another link's
		{imm(immMessage, b.link.recv.tag, 4), 3}, // beyond what is granted
		{imm(immMessage, b.link.recv.tag, 1), 0},
		{imm(immWrapped, b.link.recv.tag, 1), MinRingBytes},
		{imm(immGrant, b.link.recv.tag, grantOf(0, 1)), 0}, // for what was never sent
		{imm(immGrant, b.link.recv.tag, grantOf(0, 0)), 0},
		{imm(immGrant, b.link.recv.tag, grantOf(firstMask, 1)), 0},
		{imm(3, b.link.recv.tag, 9), 8},
	} {
		kind, tag, n := splitImm(v.imm)
		changed := tag == b.link.recv.tag &&
			(kind == immGrant && b.link.send.granted(n) || kind != immGrant && b.link.recv.arrived(kind, n, v.bytes))
		require.False(t, changed, "case %d", i)
	}
	require.Equal(t, before, b.link.Stats().Ignored)
	require.Equal(t, sent, a.link.send.sent.Load())
	require.Equal(t, acked, a.link.send.acked.Load())
	eventually(t, func() bool { return !a.link.send.busy[0].Load() })
	require.False(t, a.link.send.completed(0), "it completes once only")
	b.Release(0)
	a.send(t, []byte("two"))
	require.Equal(t, []byte("two"), b.receive(t))
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

// sink takes every request and does nothing.
type sink struct{ transport.Endpoint }

func (sink) PostSend(r []transport.SendRequest) (int, error) { return len(r), nil }
func (sink) Retire() error                                   { return nil }

func (sink) PostRecv(r []transport.RecvRequest) (int, error) { return len(r), nil }

// sunk is a link to rank 1 over a sink, as endpoint 7, with tag 5 on both
// sides.
func sunk(t *testing.T) (*Link, *Set) {
	cfg := Config{RingBytes: 1 << 14, NumMessages: 8}
	ring, _ := heap(cfg.RingBytes)
	region, err := fake.New(fake.Config{}).Transport().Register(ring.Bytes(0, cfg.RingBytes), 0)
	require.NoError(t, err)
	bytes := ring.Bytes(0, cfg.RingBytes)
	l := &Link{rank: 1, ways: []way{{poller: &Poller{}}}, cfg: cfg, ep: sink{}, bytes: [2][]byte{bytes, bytes}}
	l.send = sender{cfg: &l.cfg, ep: l.ep, staging: region, longest: 8192, tag: 5}
	l.recv = receiver{cfg: &l.cfg, ep: l.ep, ring: region, longest: 8192, tag: 5, peerTag: 5}
	l.send.init(8)
	l.recv.init(8)
	l.ways[0].poller.links.Store(&map[transport.EndpointID]*Link{7: l})
	s := NewSet(cfg, heap, func(int) error { return nil }, 0)
	s.Put([]*Link{nil, l})
	return l, s
}

func (l *Link) receives(v uint32, bytes uint32) bool {
	return l.ways[0].poller.serve(&transport.Completion{Endpoint: 7, ID: requestID(idReceive, 0), HasImm: true, Imm: v, NumBytes: bytes})
}

// TestOtherTag: what another link's tag is on means nothing.
func TestOtherTag(t *testing.T) {
	l, s := sunk(t)
	_, err := s.Reserve(1, 64)
	require.NoError(t, err)
	require.NoError(t, s.Post(1, 64))
	require.False(t, l.receives(imm(immMessage, 4, 0), 64))
	require.False(t, l.receives(imm(immGrant, 4, grantOf(0, 1)), 0))
	require.Nil(t, s.Next(1))
	require.Zero(t, l.send.acked.Load())
	require.True(t, l.receives(imm(immMessage, 5, 0), 64))
	require.True(t, l.receives(imm(immGrant, 5, grantOf(0, 1)), 0))
	require.Equal(t, uint64(2), l.Stats().Ignored)
}

// TestMisplaced: a message that would not lie inside the ring, or that is not
// the next one, ends the link.
func TestMisplaced(t *testing.T) {
	l, s := sunk(t)
	for n := range uint64(3) {
		require.True(t, l.receives(imm(immMessage, 5, n), 8000)) // a peer that sends so does not wrap
	}
	for range 2 {
		require.Len(t, s.Next(1), 8000)
		s.Release(1)
	}
	require.Nil(t, s.Next(1))
	require.ErrorIs(t, l.Err(), errMisplaced)
}

// faulty is a carrier that fails where it is told to.
type faulty struct {
	transport.Transport
	poll     error
	receives int // so many can be posted to an endpoint; 0: all
}

func (f *faulty) Poll(done []transport.Completion) (int, error) {
	if f.poll != nil {
		return 0, f.poll
	}
	return f.Transport.Poll(done)
}

func (f *faulty) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	ep, err := f.Transport.NewEndpoint(spec)
	return &faultyEndpoint{Endpoint: ep, left: f.receives}, err
}

type faultyEndpoint struct {
	transport.Endpoint
	left int
}

var errFaulty = errors.New("out of order")

func (e *faultyEndpoint) PostRecv(r []transport.RecvRequest) (int, error) {
	if e.left--; e.left == 0 {
		return 0, errFaulty
	}
	return e.Endpoint.PostRecv(r)
}

// TestDeadPoller: no goroutine polls for a link that is made after polling has failed, so
// it is not made.
func TestDeadPoller(t *testing.T) {
	p := NewPoller(&faulty{Transport: fake.New(fake.Config{}).Transport(), poll: errFaulty}, func() {})
	<-p.done
	_, err := NewLink(p, 1, 0, Config{RingBytes: 1 << 14, NumMessages: 8}, heap)
	require.ErrorIs(t, err, errFaulty)
	require.NoError(t, p.Close())
}

// TestHalfMade: of a link that cannot be made nothing is left, also when the
// carrier has requests of it already.
func TestHalfMade(t *testing.T) {
	p := NewPoller(&faulty{Transport: fake.New(fake.Config{}).Transport(), receives: 5}, func() {})
	_, err := NewLink(p, 1, 0, Config{RingBytes: 1 << 14, NumMessages: 8}, heap)
	require.ErrorIs(t, err, errFaulty)
	require.Empty(t, *p.links.Load())
	require.Empty(t, p.all)
	require.NoError(t, p.Close())
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
