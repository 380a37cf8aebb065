package tcp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

var loopback = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")}

// soon bounds what must end, on a slow machine, too.
const soon = 30 * time.Second

// pair is two transports in one process, and one endpoint of each.
type pair struct {
	t    testing.TB
	tr   [2]*Transport
	ep   [2]transport.Endpoint
	got  [2][]transport.Completion
	mems [2]transport.Region
}

func openOne(t testing.TB, config Config) *Transport {
	t.Helper()
	if config.Listen == nil {
		config.Listen = loopback
	}
	tr, err := Open(config)
	require.NoError(t, err)
	return tr
}

// newPair opens both transports with a common key; adjust may change the
// configuration of each.
func newPair(t testing.TB, adjust func(i int, c *Config)) *pair {
	t.Helper()
	p := &pair{t: t}
	ring := wire.GenerateKeyring()
	for i := range p.tr {
		config := Config{Keyring: ring}
		if adjust != nil {
			adjust(i, &config)
		}
		p.tr[i] = openOne(t, config)
	}
	return p
}

// connect makes and connects endpoints of the given depths.
func (p *pair) connect(send, recv int) {
	p.t.Helper()
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: send, RecvDepth: recv})
		require.NoError(p.t, err)
		p.ep[i] = ep
	}
	connectBoth(p.t, p.ep[0], p.ep[1])
}

func connectBoth(t testing.TB, a, b transport.Endpoint) {
	t.Helper()
	errs := make(chan error, 2)
	deadline := time.Now().Add(soon)
	la, lb := a.Local(), b.Local()
	go func() { errs <- a.Connect(lb, deadline) }()
	go func() { errs <- b.Connect(la, deadline) }()
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
}

// memory registers n bytes on each side.
func (p *pair) memory(n int, access transport.Access) {
	p.t.Helper()
	for i := range p.mems {
		mem, free := mapped(p.t, n)
		p.t.Cleanup(free)
		r, err := p.tr[i].Register(mem, access)
		require.NoError(p.t, err)
		p.mems[i] = r
	}
}

// turn polls both sides once.
func (p *pair) turn() {
	var done [64]transport.Completion
	for i := range p.tr {
		n, err := p.tr[i].Poll(done[:])
		require.NoError(p.t, err)
		p.got[i] = append(p.got[i], done[:n]...)
	}
}

// until polls both sides until the condition holds.
func (p *pair) until(what string, cond func() bool) {
	p.t.Helper()
	for end := time.Now().Add(soon); !cond(); {
		require.True(p.t, time.Now().Before(end), "waited in vain: %s; have %+v", what, p.got)
		p.turn()
	}
}

// take waits for n completions of a side and returns them.
func (p *pair) take(i, n int) []transport.Completion {
	p.t.Helper()
	p.until("completions", func() bool { return len(p.got[i]) >= n })
	got := p.got[i][:n]
	p.got[i] = append([]transport.Completion(nil), p.got[i][n:]...)
	return got
}

// one waits for the next completion of a side.
func (p *pair) one(i int) transport.Completion {
	p.t.Helper()
	return p.take(i, 1)[0]
}

func (p *pair) send(i int, r ...transport.SendRequest) {
	p.t.Helper()
	n, err := p.ep[i].PostSend(r)
	require.NoError(p.t, err)
	require.Equal(p.t, len(r), n)
}

func (p *pair) recv(i int, r ...transport.RecvRequest) {
	p.t.Helper()
	n, err := p.ep[i].PostRecv(r)
	require.NoError(p.t, err)
	require.Equal(p.t, len(r), n)
}

// closeEndpoints ends the endpoints and the memory, not the transports.
func (p *pair) closeEndpoints() {
	p.t.Helper()
	for i := range p.ep {
		require.NoError(p.t, p.ep[i].Retire())
	}
	p.turn()
	for i := range p.ep {
		require.NoError(p.t, p.ep[i].Close())
		require.NoError(p.t, p.mems[i].Close())
	}
	p.ep, p.mems = [2]transport.Endpoint{}, [2]transport.Region{}
}

// close ends everything and checks that it can be ended.
func (p *pair) close() {
	p.t.Helper()
	for i := range p.ep {
		if p.ep[i] != nil {
			require.NoError(p.t, p.ep[i].Retire())
		}
	}
	p.turn()
	p.turn()
	for i := range p.tr {
		if p.ep[i] != nil {
			require.NoError(p.t, p.ep[i].Close())
		}
		if p.mems[i] != nil {
			require.NoError(p.t, p.mems[i].Close())
		}
		require.NoError(p.t, p.tr[i].Close())
	}
}

func whole(r transport.Region) []transport.Piece {
	return []transport.Piece{{Region: r, Bytes: len(r.Bytes())}}
}
