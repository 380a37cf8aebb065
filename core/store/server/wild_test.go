//go:build !race

package server_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
)

// A client that changes its bounce buffer while the server copies costs itself that put: what is stored fits its tag, to
// the byte. A race on purpose.
func TestBounceThatChanges(t *testing.T) {
	srv, first := newLocal(t)
	r, memory := first.bouncing()
	block := noise(100_000)
	copy(memory, block)
	var over atomic.Bool
	var wild sync.WaitGroup
	wild.Go(func() { // a byte somewhere is another one half of the time
		for n := 0; !over.Load(); n = (n + 7919) % len(block) {
			for _, b := range []byte{^block[n], block[n]} {
				memory[n] = b
				for until := time.Now().Add(10 * time.Microsecond); time.Now().Before(until); {
				}
			}
		}
	})
	defer func() {
		over.Store(true)
		wild.Wait()
	}()
	statuses := map[message.Status]int{}
	for n := range 300 {
		key := fmt.Sprint(n)
		said, payload := r.bounced(key, block, 0)
		status, _ := r.do(message.Put, said, payload)
		statuses[status]++
		if status == message.OK {
			require.True(t, bytes.Equal(block, first.block(key)), n)
		}
	}
	require.Equal(t, 300, statuses[message.OK]+statuses[message.BadTag])
	require.Positive(t, statuses[message.OK])
	require.Positive(t, statuses[message.BadTag])
	require.EqualValues(t, statuses[message.BadTag], srv.Counters().BadPuts.Load())
}
