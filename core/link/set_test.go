package link

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// foreign is a region that no processor can read.
type foreign struct{ transport.Region }

func (foreign) Bytes() []byte { return nil }

// TestMemoryOfADevice: messages in it have places, and no bytes.
func TestMemoryOfADevice(t *testing.T) {
	cfg := Config{RingBytes: 1 << 16, NumMessages: 4}
	l := &Link{send: sender{cfg: &cfg, longest: 1024, staging: foreign{}}, recv: receiver{cfg: &cfg, longest: 1024, ring: foreign{}}}
	l.send.init(4)
	l.recv.init(4)
	s := NewSet(cfg, heap, func(int) error { return nil }, 0)
	s.Put([]*Link{nil, l})
	_, err := s.ReserveAt(1, 100)
	require.NoError(t, err)
	b, err := s.Reserve(1, 100)
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "rank 1")
	require.Nil(t, b)
	require.Nil(t, s.Next(1))
	require.True(t, l.recv.arrived(immMessage, 0, 100))
	_, n := s.NextAt(1)
	require.EqualValues(t, 100, n)
	require.Nil(t, s.Next(1))
}

// TestLongestFollows: the longest message is that of the present links; one that has gone
// bounds no message any more.
func TestLongestFollows(t *testing.T) {
	s := NewSet(Config{RingBytes: 1 << 16, NumMessages: 4}, heap, func(int) error { return nil }, 0)
	require.EqualValues(t, 1<<15, s.MaxMessageBytes())
	short, long := &Link{send: sender{longest: 1024}}, &Link{send: sender{longest: 4096}}
	s.Put([]*Link{nil, short, long})
	require.EqualValues(t, 1024, s.MaxMessageBytes())
	require.Equal(t, []*Link{short}, s.Put([]*Link{nil, nil, long}))
	require.EqualValues(t, 4096, s.MaxMessageBytes())
	s.Put(nil)
	require.EqualValues(t, 1<<15, s.MaxMessageBytes())
}
