package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// WF5: any portions of a stream of frames and payloads give the same messages.
func TestWF5Splitter(t *testing.T) {
	src := newRand(t)
	client, server := sessions(t, func(c *Config) { c.Ordered = true })
	digest := server.NewDigest()
	var stream []byte
	const num = 40
	for i := range num {
		payload := noise(uint64(i), src.IntN(3)*src.IntN(300))
		stream = append(stream, sealed(t, client, Head{Code: 1, Extra: noise(1, src.IntN(50))}, payload)...)
		stream = append(stream, payload...)
	}
	var split Splitter
	messages, left := 0, int64(0)
	for len(stream) > 0 {
		n := min(len(stream), 1+src.IntN(3)*src.IntN(400))
		in := stream[:n]
		stream = stream[n:]
		for len(in) > 0 {
			if left > 0 {
				m := min(int64(len(in)), left)
				digest.Write(in[:m])
				in, left = in[m:], left-m
			} else {
				frame, rest, err := split.Next(in)
				require.NoError(t, err)
				in = rest
				if frame == nil {
					continue
				}
				head, err := server.OpenHead(frame)
				require.NoError(t, err)
				digest.Begin(&head)
				left = server.PayloadWireBytes(&head)
			}
			if left == 0 {
				require.NoError(t, digest.Check())
				messages++
			}
		}
	}
	require.Equal(t, num, messages)
	_, rest, err := split.Next([]byte{0xff, 0xff, 0xff, 0xff, 1})
	require.ErrorIs(t, err, ErrLength)
	require.Len(t, rest, 1)
}
