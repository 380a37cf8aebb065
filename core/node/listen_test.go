package node

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHostPortOf: addresses in every form in which they are printed.
func TestHostPortOf(t *testing.T) {
	for given, want := range map[string]string{
		"::1": "[::1]:0", "[::1]": "[::1]:0", "[::1]:5000": "[::1]:5000", "[fe80::1%lo]": "[fe80::1%lo]:0",
		"127.0.0.1": "127.0.0.1:0", "127.0.0.1:80": "127.0.0.1:80",
	} {
		got, err := hostPortOf(given)
		require.NoError(t, err, given)
		require.Equal(t, netip.MustParseAddrPort(want), got)
	}
	for _, given := range []string{"[127.0.0.1]", "[::1", "::1]", "[]", "[[::1]]", "[::1]x", "no interface"} {
		_, err := hostPortOf(given)
		require.Error(t, err, given)
	}
}
