package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

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
