package tcp

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConnectWithoutDescriptors(t *testing.T) {
	p := newPair(t, nil)
	transporttest.ConnectWithoutDescriptors(t, p.tr[0], p.tr[1],
		func() func() { return sys.FailCall("accept4", syscall.EMFILE) })
	for _, tr := range p.tr {
		require.NoError(t, tr.Close())
	}
}
