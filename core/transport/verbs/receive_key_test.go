package verbs

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// TestBadReceiveKey: the peer's device cannot write into its own receive. Both
// sides hear of it, each with its own part.
func TestBadReceiveKey(t *testing.T) {
	tr := openDevice(t, quick)
	local, landing := memory(t, tr, 64, both), memory(t, tr, 64, both)
	a, b := connected(t, tr, 4)
	landing.(*region).lkeys[0] ^= 0x5500
	postRecv(t, b, transport.RecvRequest{ID: 1, Local: whole(landing)})
	post(t, a, transport.SendRequest{ID: 2, Op: transport.OpSend, Local: whole(local)})
	all := await(t, tr, 2)
	assert.Equal(t, transport.StatusLocal, all[1].Status, "%+v", all[1])
	assert.Contains(t, []libibverbs.WCStatus{libibverbs.WCLocQPOpErr, libibverbs.WCLocProtErr}, deviceStatus(all[1]))
	assert.Equal(t, transport.StatusRemote, all[2].Status, "%+v", all[2])
	assert.Contains(t, []libibverbs.WCStatus{libibverbs.WCRemOpErr, libibverbs.WCRemInvReqErr}, deviceStatus(all[2]))
	assert.Equal(t, make([]byte, 64), landing.Bytes())
}
