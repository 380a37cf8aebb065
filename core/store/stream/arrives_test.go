package stream

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// The head of a message has arrived once all of it is there, in whatever pieces it comes; what has not arrived is not
// waited for beyond a moment, and an end is told.
func TestArrives(t *testing.T) {
	one, other, err := sys.StreamPair()
	require.NoError(t, err)
	receiver, err := sys.NewSocketConn(one, nil, nil)
	require.NoError(t, err)
	defer receiver.Close()
	sender, err := sys.NewSocketConn(other, nil, nil)
	require.NoError(t, err)
	a, b := sessions(t, sender, receiver, wire.ProtectDigest)
	r := NewReader(receiver, b, long)
	frame, err := a.Seal(nil, &wire.Head{Code: 3}, []byte("payload"))
	require.NoError(t, err)
	for range 2 {
		for at := range frame {
			if at%40 == 0 {
				there, err := r.Arrives(time.Millisecond)
				require.NoError(t, err)
				require.False(t, there, "%d of %d bytes", at, len(frame))
			}
			_, err := sender.Write(frame[at : at+1])
			require.NoError(t, err)
		}
		there, err := r.Arrives(testTimeout)
		require.NoError(t, err)
		require.True(t, there)
		head, err := r.Next()
		require.NoError(t, err)
		require.EqualValues(t, 7, head.PayloadBytes)
		list := net.Buffers{[]byte("payload")}
		_, err = sender.WriteBuffers(&list)
		require.NoError(t, err)
		require.NoError(t, r.End())
		frame, err = a.Seal(frame[:0], &wire.Head{Code: 3}, []byte("payload"))
		require.NoError(t, err)
	}
	require.NoError(t, sender.Close())
	_, err = r.Arrives(testTimeout)
	require.ErrorIs(t, err, io.EOF)
}
