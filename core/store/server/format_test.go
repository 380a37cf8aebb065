package server

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// No verb shows the secrets of a connection.
func TestSecretsAreNotPrinted(t *testing.T) {
	c := &conn{secret: [32]byte{171}, invited: [32]byte{205}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x"} {
		require.Equal(t, "server.conn", fmt.Sprintf(verb, c), verb)
	}
}
