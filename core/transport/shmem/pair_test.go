package shmem

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

const soon = 10 * time.Second

// pair is two endpoints of one process that are connected.
type pair struct {
	t      testing.TB
	tr     [2]*Transport
	ep     [2]*Endpoint
	memory [2]*Memory
	region [2]transport.Region
	done   map[uint64]transport.Completion
	buf    []transport.Completion
}

func newPair(t testing.TB, sizeBytes int64) *pair {
	p := &pair{t: t, done: map[uint64]transport.Completion{}, buf: make([]transport.Completion, 16)}
	for i := range p.tr {
		var err error
		p.tr[i], err = Open(Config{})
		require.NoError(t, err)
		p.memory[i], err = NewMemory(sizeBytes)
		require.NoError(t, err)
		p.region[i], err = p.tr[i].Register(p.memory[i].Bytes(), transport.AccessRead|transport.AccessWrite)
		require.NoError(t, err)
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 8})
		require.NoError(t, err)
		p.ep[i] = ep.(*Endpoint)
	}
	return p
}

func connected(t testing.TB, sizeBytes int64) *pair {
	p := newPair(t, sizeBytes)
	p.connect()
	return p
}

func (p *pair) connect() {
	errs := make(chan error, 2)
	for i := range p.ep {
		go func() { errs <- p.ep[i].Connect(p.ep[1-i].Local(), time.Now().Add(soon)) }()
	}
	require.NoError(p.t, errors.Join(<-errs, <-errs))
}

func (p *pair) piece(i, off, n int) []transport.Piece {
	return []transport.Piece{{Region: p.region[i], Off: off, Bytes: n}}
}

func (p *pair) poll(sides ...int) {
	for _, i := range sides {
		n, err := p.tr[i].Poll(p.buf)
		require.NoError(p.t, err)
		for _, c := range p.buf[:n] {
			require.NotContains(p.t, p.done, c.ID, "two completions")
			p.done[c.ID] = c
		}
	}
}

// await polls sides until a request of one has ended.
func (p *pair) await(id uint64, sides ...int) transport.Completion {
	require.Eventually(p.t, func() bool {
		p.poll(sides...)
		_, ended := p.done[id]
		return ended
	}, soon, 50*time.Microsecond, "request %d", id)
	return p.done[id]
}

func (p *pair) send(i int, q transport.SendRequest) {
	n, err := p.ep[i].PostSend([]transport.SendRequest{q})
	require.NoError(p.t, err)
	require.Equal(p.t, 1, n)
}

func (p *pair) recv(i int, id uint64, pieces []transport.Piece) {
	n, err := p.ep[i].PostRecv([]transport.RecvRequest{{ID: id, Local: pieces}})
	require.NoError(p.t, err)
	require.Equal(p.t, 1, n)
}

// close closes some sides, which nothing may prevent.
func (p *pair) close(sides ...int) {
	for _, i := range sides {
		require.NoError(p.t, p.ep[i].Retire())
	}
	for _, i := range sides {
		require.Eventually(p.t, func() bool {
			p.poll(i)
			return p.ep[i].Close() == nil
		}, soon, time.Millisecond)
		require.NoError(p.t, p.region[i].Close())
		require.NoError(p.t, p.tr[i].Close())
		require.NoError(p.t, p.memory[i].Close())
	}
}
