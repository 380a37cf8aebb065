package transporttest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

func TestSkipsAreCounted(t *testing.T) {
	kill := func(testing.TB, transport.Transport) {}
	require.Empty(t, wrongSkips(TransportHarness{Kill: kill}))
	require.Empty(t, wrongSkips(TransportHarness{Skips: map[string]string{"Vanish": "one process"}, NumSkips: 1}))
	for name, h := range map[string]TransportHarness{
		"no Kill, no skip": {},
		"one uncounted":    {Kill: kill, Skips: map[string]string{"Read": "cannot"}},
		"one too few":      {Kill: kill, NumSkips: 1},
		"no such case":     {Kill: kill, Skips: map[string]string{"Reed": "cannot"}, NumSkips: 1},
		"no reason":        {Kill: kill, Skips: map[string]string{"Read": ""}, NumSkips: 1},
	} {
		require.Len(t, wrongSkips(h), 1, name)
	}
}
