package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/transporttest"
	"github.com/moewire/moewire/core/wire"
)

func TestConformance(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { transporttest.RunTransport(t, harness(v.adjust)) })
	}
}

func harness(adjust func(i int, c *Config)) transporttest.TransportHarness {
	return transporttest.TransportHarness{
		New: func(t testing.TB, n int) []transport.Transport {
			ring := wire.GenerateKeyring()
			list := make([]transport.Transport, n)
			for i := range list {
				config := Config{Keyring: ring, ReceiveTimeout: 100 * time.Millisecond}
				if adjust != nil {
					adjust(i&1, &config)
				}
				list[i] = openOne(t, config)
			}
			return list
		},
		Kill: kill,
	}
}

// kill does what the end of the process does.
func kill(t testing.TB, victim transport.Transport) {
	tr := victim.(*Transport)
	for i := range tr.conns {
		if c := tr.conns[i].Load(); c != nil {
			c.ep.io.Lock()
			c.ep.closeConns()
			c.ep.io.Unlock()
		}
	}
	require.NoError(t, tr.closeAll())
}
