package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConformance(t *testing.T) {
	one := func(c Config) (transport.Transport, error) { return New(c) }
	group := func(c Config) (transport.Transport, error) { return NewGroup(c) }
	for name, open := range map[string]func(c Config) (transport.Transport, error){"one": one, "group": group} {
		t.Run(name, func(t *testing.T) {
			config := Config{NumEndpoints: 40, SendDepth: 64, RecvDepth: 64}
			require.NoError(t, openDevice(t, config).Close()) // or skip
			transporttest.RunTransport(t, transporttest.TransportHarness{
				New: func(t testing.TB, n int) []transport.Transport {
					return openSeveral(t, n, func() (transport.Transport, error) { return open(config) })
				},
				Memory:          anonymous,
				MaxRequestBytes: 1 << 20,
				Timeout:         testTimeout,
				Skips: map[string]string{
					"Vanish": "a process has to end for that: tests/rdma kills one",
				},
				NumSkips: 1,
			})
		})
	}
}

// openSeveral opens one device several times: its ports reach themselves.
func openSeveral(t testing.TB, n int, open func() (transport.Transport, error)) []transport.Transport {
	list := make([]transport.Transport, n)
	for i := range list {
		tr, err := open()
		require.NoError(t, err)
		list[i] = tr
	}
	return list
}

func anonymous(t testing.TB, sizeBytes int) ([]byte, func()) {
	m, err := sys.MapAnonymous(int64(sizeBytes))
	require.NoError(t, err)
	return m.Bytes(), func() { require.NoError(t, m.Unmap()) }
}
