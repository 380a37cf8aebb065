package mixed

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// TestTurns: the ranks of one host open their carriers with different turns,
// whatever their numbers, so that they can share out its devices.
func TestTurns(t *testing.T) {
	keys := wire.GenerateKeyring()
	var mu sync.Mutex
	turns := make([]int, 5)
	listeners := make([]*Listener, 5)
	for r, host := range []string{"a", "b", "a", "b", "a"} {
		cfg := testConfig(keys, r, 5, host)
		cfg.Carriers = append([]Carrier{{Setting: RDMA, Open: func(turn int) (transport.Transport, error) {
			mu.Lock()
			defer mu.Unlock()
			turns[r] = turn
			return nil, errors.New("there is no device")
		}}}, cfg.Carriers...)
		var err error
		listeners[r], err = Open(cfg)
		require.NoError(t, err)
		defer listeners[r].Close()
	}
	g := &troupe{t: t, domains: make([]*Domain, 5)}
	require.NoError(t, errors.Join(g.connect(listeners)...))
	defer g.close()
	require.Equal(t, []int{0, 0, 1, 1, 2}, turns)
}
