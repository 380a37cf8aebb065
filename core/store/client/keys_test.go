package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
)

// Once a call has ended its keys are the caller's again: nothing looks at those of one that was late, though its reply comes.
func TestKeysOfALateCall(t *testing.T) {
	s, _ := serve(t)
	c, cable := relayed(t, s, testTimeout)
	mustPut(t, c, "key", nil)
	cable.stopped.Store(true)
	key := []byte("key")
	done, err := c.Do(Request{Op: message.Get, Keys: [][]byte{key}, Timeout: 30 * time.Millisecond})
	require.NoError(t, err)
	require.False(t, done.OK[0])
	l := c.peers[0].link
	var kept [][]byte
	l.mu.Lock()
	for _, expired := range l.running {
		kept = append(kept, expired.keys...)
	}
	l.mu.Unlock()
	require.Equal(t, [][]byte{nil}, kept)
	copy(key, "---") // the race detector sees it if something still reads
	cable.stopped.Store(false)
	found, err := c.Exists([][]byte{[]byte("key")})
	require.NoError(t, err)
	require.True(t, found[0])
	require.Zero(t, c.counts.Broken.Load())
}
