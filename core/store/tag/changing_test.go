//go:build !race

package tag

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tag is of what was stored, though the memory that is copied changes all the while: a race on purpose.
func TestTagOfChangingMemory(t *testing.T) {
	const size = 4*ChunkBytes + 1000
	block := make([]byte, size)
	patterns := [2][]byte{bytes.Repeat([]byte{1}, size), bytes.Repeat([]byte{2}, size)}
	var over atomic.Bool
	var ended sync.WaitGroup
	ended.Go(func() {
		for n := 0; !over.Load(); n++ {
			copy(block, patterns[n%2])
		}
	})
	tagger, to, mixed := New(ours, here), make([]byte, size), 0
	for range 2000 {
		tagger.Begin([]byte("key"), size)
		tagger.Copy(to, block)
		require.Equal(t, New(ours, here).Of([]byte("key"), to), tagger.Tag())
		if !bytes.Equal(to[:8], to[size-8:]) {
			mixed++
		}
	}
	over.Store(true)
	ended.Wait()
	t.Logf("%d copies of bytes that have changed meanwhile", mixed)
}
