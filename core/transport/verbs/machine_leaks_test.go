package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// TestES2NoQueuePairIsLeft connects, uses and loses endpoints in every way
// many times: the kernel counts as many queue pairs as endpoints are open.
func TestES2NoQueuePairIsLeft(t *testing.T) {
	needMachine(t)
	before := sys.Stats()
	require.Zero(t, numQueuePairs(t))
	tr := open(t, verbs.Config{RNRRetryCount: 1, RNRTimer: 1})
	m, err := sys.MapAnonymous(4096)
	require.NoError(t, err)
	region, err := tr.Register(m.Bytes(), both)
	require.NoError(t, err)
	for round := range 500 {
		a, b := newEndpoint(t, tr), newEndpoint(t, tr)
		if round%100 == 0 {
			require.Equal(t, 2, numQueuePairs(t))
		}
		oneLife(t, round, region, a, b)
		finish(t, tr, a, b)
	}
	require.Zero(t, numQueuePairs(t))
	require.NoError(t, region.Close())
	require.NoError(t, m.Unmap())
	require.NoError(t, tr.Close())
	require.Zero(t, tr.NumStrays())
	require.Equal(t, before, sys.Stats())
}

// oneLife takes a pair of endpoints to one of several ends.
func oneLife(t *testing.T, round int, region transport.Region, a, b transport.Endpoint) {
	t.Helper()
	soon := time.Now().Add(testTimeout)
	n, err := b.PostRecv([]transport.RecvRequest{{ID: 1}, {ID: 2}})
	require.NoError(t, err)
	require.Equal(t, 2, n)
	if round%5 == 4 { // never connected, or refused
		if round%2 == 0 {
			require.Error(t, a.Connect(nil, soon))
		}
		return
	}
	require.NoError(t, a.Connect(b.Local(), soon))
	require.NoError(t, b.Connect(a.Local(), soon))
	request := transport.SendRequest{
		ID: 3, Op: transport.OpWriteImm, Remote: region.Remote(),
		Local: []transport.Piece{{Region: region, Bytes: 64}},
	}
	switch round % 5 {
	case 1: // refused by the peer
		request.Remote.Key ^= 0x5500
	case 2: // no receive at the peer
		_, err = b.PostSend([]transport.SendRequest{request})
		require.NoError(t, err)
		return
	case 3: // retired with work under way
		request.Op = transport.OpRead
		require.NoError(t, b.Retire())
	}
	_, err = a.PostSend([]transport.SendRequest{request, request})
	require.NoError(t, err)
}
