package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/transporttest"
	"github.com/moewire/moewire/core/wire"
)

func TestConformance(t *testing.T) {
	for i, v := range variants {
		if testing.Short() && i%3 != 0 { // the first, and the one that has all
			continue
		}
		t.Run(v.name, func(t *testing.T) { transporttest.RunTransport(t, harness(v.adjust)) })
	}
}

func harness(adjust func(i int, c *Config)) transporttest.TransportHarness {
	return transporttest.TransportHarness{
		New: func(t testing.TB, n int) []transport.Transport {
			ring := wire.GenerateKeyring()
			list := make([]transport.Transport, n)
			for i := range list {
				config := Config{Keyring: ring, ReceiveTimeout: 500 * time.Millisecond}
				if adjust != nil {
					adjust(i&1, &config)
				}
				list[i] = openOne(t, config)
			}
			return list
		},
		Kill: kill,
		// The race detector does not see the order that sockets make between
		// two transports, so one-sided operations would look like races. It
		// does not look at mapped memory.
		Memory: mapped,
	}
}

// mapped returns memory as a Domain has it, off the Go heap.
func mapped(t testing.TB, sizeBytes int) ([]byte, func()) {
	fd, err := sys.NewMemfd("tcp test")
	require.NoError(t, err)
	require.NoError(t, sys.Grow(fd, int64(sizeBytes)))
	m, err := sys.Map(fd, 0, int64(sizeBytes))
	require.NoError(t, err)
	require.NoError(t, fd.Close())
	return m.Bytes(), func() { require.NoError(t, m.Unmap()) }
}

// kill does what the end of the process does.
func kill(t testing.TB, killed transport.Transport) {
	tr := killed.(*Transport)
	for i := range tr.conns {
		if c := tr.conns[i].Load(); c != nil {
			c.ep.io.Lock()
			c.ep.mu.Lock()
			c.ep.closeConns()
			c.ep.mu.Unlock()
			c.ep.io.Unlock()
			_ = c.fd.Close() // kept for its notices
		}
	}
	require.NoError(t, tr.closeAll())
}
