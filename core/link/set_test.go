package link

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLongestFollows: the longest message is that of the links of now; one
// that has gone bounds nobody any more.
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
