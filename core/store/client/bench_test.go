package client

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// Gets and puts of one block at a time, and exists of many keys, over loopback TCP. The
// allocations are those of both sides.
func BenchmarkLoopback(b *testing.B) {
	for _, n := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("get/%dKiB", n>>10), func(b *testing.B) {
			c, _, _ := pair(b, wire.ProtectDigest)
			key, into := []byte("key"), make([]byte, n)
			ok, err := c.Put(key, make([]byte, n), nil)
			require.NoError(b, err)
			require.True(b, ok)
			r := Request{Op: message.Get, Keys: [][]byte{key}, Buffers: [][][]byte{{into}}}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				done, err := c.Do(r)
				require.NoError(b, err)
				require.True(b, done.OK[0])
			}
		})
	}
	b.Run("exists/512", func(b *testing.B) {
		c, _, _ := pair(b, wire.ProtectDigest)
		keys := make([][]byte, 512)
		for i := range keys {
			keys[i] = fmt.Appendf(nil, "a key of some length, as hashes are %d", i)
		}
		for b.Loop() {
			_, err := c.Exists(keys)
			require.NoError(b, err)
		}
	})
}
