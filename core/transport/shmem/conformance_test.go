package shmem_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/shmem"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConformance(t *testing.T) {
	for name, config := range map[string]shmem.Config{
		"default": {},
		"few":     {NumEndpoints: 40},
		"most":    {NumEndpoints: shmem.MaxEndpoints},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.RunTransport(t, transporttest.TransportHarness{
				New: func(t testing.TB, n int) []transport.Transport {
					list := make([]transport.Transport, n)
					for i := range list {
						list[i] = open(t, config)
					}
					return list
				},
				Memory:      memory,
				Kill:        func(_ testing.TB, killed transport.Transport) { shmem.Kill(killed) },
				FlowControl: true,
				NumSkips:    0,
			})
		})
	}
}

func open(t testing.TB, config shmem.Config) *shmem.Transport {
	tr, err := shmem.Open(config)
	require.NoError(t, err)
	return tr
}

func memory(t testing.TB, sizeBytes int) ([]byte, func()) {
	m, err := shmem.NewMemory(int64(sizeBytes))
	require.NoError(t, err)
	return m.Bytes(), func() { require.NoError(t, m.Close()) }
}
