package verbs

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// fillRandom gives a region contents that no other has.
func fillRandom(r transport.Region, seed int64) {
	rand.New(rand.NewSource(seed)).Read(r.Bytes())
}

func TestEveryOperationMovesItsBytes(t *testing.T) {
	tr := openDevice(t, Config{NumEndpoints: 16})
	t.Logf("%s: %+v", tr.Device(), tr.Limits())
	a, b := connected(t, tr, 16)
	const n = 100_000
	src, dst := memory(t, tr, n, both), memory(t, tr, n, both)

	fillRandom(src, 1)
	post(t, a, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: whole(src), Remote: dst.Remote()})
	c := await(t, tr, 1)[1]
	assert.Equal(t, transport.Completion{ID: 1, Endpoint: a.ID(), Op: transport.OpWrite, NumBytes: n}, c)
	assert.True(t, bytes.Equal(src.Bytes(), dst.Bytes()))

	fillRandom(dst, 2)
	post(t, a, transport.SendRequest{ID: 2, Op: transport.OpRead, Local: whole(src), Remote: dst.Remote()})
	c = await(t, tr, 1)[2]
	assert.Equal(t, transport.Completion{ID: 2, Endpoint: a.ID(), Op: transport.OpRead, NumBytes: n}, c)
	assert.True(t, bytes.Equal(src.Bytes(), dst.Bytes()))

	fillRandom(src, 3)
	postRecv(t, b, transport.RecvRequest{ID: 3, Local: whole(dst)}, transport.RecvRequest{ID: 4})
	post(t, a,
		transport.SendRequest{ID: 5, Op: transport.OpSend, Local: []transport.Piece{
			{Region: src, Off: 10, Bytes: 1000}, {Region: src, Off: 5000, Bytes: 7},
		}},
		transport.SendRequest{
			ID: 6, Op: transport.OpWriteImm, Imm: 0x01020304,
			Local:  []transport.Piece{{Region: src, Off: 50_000, Bytes: 300}},
			Remote: dst.Remote(), RemoteOff: 60_000,
		})
	all := await(t, tr, 4)
	assert.Equal(t, transport.Completion{ID: 3, Endpoint: b.ID(), Op: transport.OpRecv, NumBytes: 1007}, all[3])
	assert.Equal(t, transport.Completion{
		ID: 4, Endpoint: b.ID(), Op: transport.OpRecvImm, HasImm: true, Imm: 0x01020304, NumBytes: 300,
	}, all[4])
	assert.Equal(t, transport.StatusOK, all[5].Status)
	assert.Equal(t, transport.StatusOK, all[6].Status)
	want := append(bytes.Clone(src.Bytes()[10:1010]), src.Bytes()[5000:5007]...)
	assert.True(t, bytes.Equal(want, dst.Bytes()[:1007]))
	assert.True(t, bytes.Equal(src.Bytes()[50_000:50_300], dst.Bytes()[60_000:60_300]))
	require.Zero(t, tr.NumStrays())
}
