package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// TestBusyPeer: what another peer sends is taken in while there are always
// completions to return.
func TestBusyPeer(t *testing.T) {
	p := newPair(t, nil)
	p.memory(8, transport.AccessWrite)
	p.connect(4, 4)
	tr, ep := p.tr[0], p.ep[0].(*endpoint)
	tr.standby.Enter() // nothing but Poll looks at the sockets
	write := func() {
		p.send(1, transport.SendRequest{Op: transport.OpWrite, Local: whole(p.mems[1]), Remote: p.mems[0].Remote()})
	}
	write()
	require.Equal(t, transport.StatusOK, p.one(1).Status)
	p.turn()
	write()
	p.until("the end of the write", func() bool {
		ep.unpolledSends.Add(1)
		tr.done.push(transport.Completion{Op: transport.OpWrite}, ep)
		return len(p.got[1]) > 0
	})
	require.Equal(t, transport.StatusOK, p.one(1).Status)
	tr.standby.Leave()
	p.turn()
	p.close()
}
