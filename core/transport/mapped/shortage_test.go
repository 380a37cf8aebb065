package mapped

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConnectWithoutDescriptors(t *testing.T) {
	a, err := Open(Config{})
	require.NoError(t, err)
	b, err := Open(Config{})
	require.NoError(t, err)
	transporttest.ConnectWithoutDescriptors(t, a, b,
		func() func() { return sys.FailCall("accept4", syscall.EMFILE) })
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
