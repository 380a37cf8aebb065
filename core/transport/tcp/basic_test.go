package tcp

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

func fillRandom(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

// variants are the ways to carry bytes that have code of their own.
var variants = []struct {
	name   string
	adjust func(i int, c *Config)
}{
	{"digest", nil},
	{"encrypt", func(_ int, c *Config) { c.Protection = wire.ProtectEncrypt }},
	{"many sockets", func(_ int, c *Config) { c.NumSockets = 4; c.segmentBytes = 4096 }},
	{"encrypt, many sockets", func(i int, c *Config) {
		c.NumSockets, c.Protection = 3+i, wire.ProtectEncrypt
	}},
	{"no copy", func(_ int, c *Config) { c.NumSockets, c.ZeroCopy, c.ZeroCopyBytes = 2, ZeroCopyOn, 1 }},
	{"small buffers", func(_ int, c *Config) { c.SocketBufferBytes = 4096 }},
}

func eachVariant(t *testing.T, f func(t *testing.T, p *pair)) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { f(t, newPair(t, v.adjust)) })
	}
}

func TestOperationsMoveBytes(t *testing.T) {
	eachVariant(t, func(t *testing.T, p *pair) {
		for _, n := range []int{0, 1, 100, 16 << 10, 70_001, 256 << 10, 3<<20 + 17} {
			p.memory(n+2, transport.AccessRead|transport.AccessWrite)
			p.connect(4, 4)
			a, b := p.mems[0].Bytes(), p.mems[1].Bytes()
			fillRandom(a, uint64(n))
			part := []transport.Piece{{Region: p.mems[0], Off: 1, Bytes: n / 3}, {Region: p.mems[0], Off: 1 + n/3, Bytes: n - n/3}}

			p.send(0, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: part, Remote: p.mems[1].Remote(), RemoteOff: 1})
			c := p.one(0)
			require.Equal(t, transport.Completion{ID: 1, Endpoint: p.ep[0].ID(), Op: transport.OpWrite, NumBytes: uint32(n)}, c)
			require.Equal(t, a[1:1+n], b[1:1+n])
			require.Zero(t, b[0]|b[n+1])

			clear(b)
			p.recv(1, transport.RecvRequest{ID: 7})
			p.send(0, transport.SendRequest{ID: 2, Op: transport.OpWriteImm, Imm: 99, Local: part, Remote: p.mems[1].Remote(), RemoteOff: 1})
			require.Equal(t, transport.StatusOK, p.one(0).Status)
			c = p.one(1)
			require.Equal(t, transport.Completion{ID: 7, Endpoint: p.ep[1].ID(), Op: transport.OpRecvImm, HasImm: true, Imm: 99, NumBytes: uint32(n)}, c)
			require.Equal(t, a[1:1+n], b[1:1+n])

			clear(b)
			p.recv(1, transport.RecvRequest{ID: 8, Local: []transport.Piece{{Region: p.mems[1], Bytes: 1}, {Region: p.mems[1], Off: 1, Bytes: n}}})
			p.send(0, transport.SendRequest{ID: 3, Op: transport.OpSend, Local: part})
			require.Equal(t, transport.StatusOK, p.one(0).Status)
			c = p.one(1)
			require.Equal(t, transport.Completion{ID: 8, Endpoint: p.ep[1].ID(), Op: transport.OpRecv, NumBytes: uint32(n)}, c)
			require.Equal(t, a[1:1+n], b[:n])

			copy(b[1:], a[1:1+n])
			clear(a)
			p.send(0, transport.SendRequest{ID: 4, Op: transport.OpRead, Local: part, Remote: p.mems[1].Remote(), RemoteOff: 1})
			c = p.one(0)
			require.Equal(t, transport.Completion{ID: 4, Endpoint: p.ep[0].ID(), Op: transport.OpRead, NumBytes: uint32(n)}, c)
			require.Equal(t, b[1:1+n], a[1:1+n])
			require.Zero(t, a[0]|a[n+1])
			p.closeEndpoints()
		}
		p.ep = [2]transport.Endpoint{}
		p.close()
	})
}
