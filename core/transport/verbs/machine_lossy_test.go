package verbs_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/verbs"
)

// TestLossyNetwork: what is lost, late, double or out of order on the network
// is the device's business: each request ends once, and its bytes are right.
// A network that loses everything ends the endpoint, within its retries.
func TestLossyNetwork(t *testing.T) {
	needMachine(t)
	c := testenv.NewDeviceCable(t)
	var tr [2]*verbs.Transport
	var region [2]transport.Region
	var ep [2]transport.Endpoint
	for i := range tr {
		tr[i] = open(t, verbs.Config{Device: c.Devices[i], RetryCount: 6})
		t.Cleanup(func() { require.NoError(t, tr[i].Close()) })
		region[i] = register(t, tr[i], 64<<10)
		ep[i] = newEndpoint(t, tr[i])
		t.Cleanup(func() { finish(t, tr[i], ep[i]) })
	}
	require.NoError(t, ep[0].Connect(ep[1].Local(), time.Now().Add(testTimeout)))
	require.NoError(t, ep[1].Connect(ep[0].Local(), time.Now().Add(testTimeout)))
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	for _, weather := range []struct {
		what []string
		seen func() int // counts what has to have happened
	}{
		{[]string{"loss", "1%"}, c.NumDropped},
		{[]string{"delay", "1ms", "reorder", "98%"}, c.NumOutOfOrder}, // the others come late
		{[]string{"delay", "1ms", "reorder", "99%", "loss", "0.5%", "duplicate", "1%"}, c.NumOutOfOrder},
	} {
		c.Be(weather.what...)
		before, n := weather.seen(), 0
		for ; n < 25 || weather.seen() == before; n++ {
			require.Less(t, n, 1000, "%v: nothing of it was seen", weather.what)
			oneTransfer(t, rng, tr, ep, region)
		}
		t.Logf("%v: %d packets in %d transfers", weather.what, weather.seen()-before, n)
	}
	c.Be("loss", "100%")
	_, err := ep[0].PostSend([]transport.SendRequest{{ID: 9, Op: transport.OpWrite, Remote: region[1].Remote()}})
	require.NoError(t, err)
	require.Equal(t, transport.StatusUnreachable, next(t, tr[0]).Status)
	require.Equal(t, transport.StateError, ep[0].State())
}

// oneTransfer moves random bytes by a random operation, and compares them.
func oneTransfer(t *testing.T, rng *rand.Rand, tr [2]*verbs.Transport, ep [2]transport.Endpoint, region [2]transport.Region) {
	t.Helper()
	n := 1 + rng.IntN(16<<10)
	for i := range region {
		fillWith(region[i].Bytes(), rng.Uint64())
	}
	request := transport.SendRequest{
		ID: 7, Op: transport.Opcode(1 + rng.IntN(4)), Imm: 5, Remote: region[1].Remote(),
		Local: []transport.Piece{{Region: region[0], Bytes: n}},
	}
	src, dst := region[0].Bytes(), region[1].Bytes()
	if request.Op == transport.OpRead {
		src, dst = dst, src
	}
	want := append(bytes.Clone(src[:n]), dst[n:]...)
	received := request.Op == transport.OpSend || request.Op == transport.OpWriteImm
	if received {
		_, err := ep[1].PostRecv([]transport.RecvRequest{{ID: 8, Local: []transport.Piece{{Region: region[1], Bytes: n}}}})
		require.NoError(t, err)
	}
	_, err := ep[0].PostSend([]transport.SendRequest{request})
	require.NoError(t, err)
	sent := next(t, tr[0])
	require.Equal(t, transport.StatusOK, sent.Status, "%+v", sent)
	if received {
		got := next(t, tr[1])
		require.Equal(t, transport.StatusOK, got.Status, "%+v", got)
		require.EqualValues(t, n, got.NumBytes)
	}
	require.True(t, bytes.Equal(want, dst), "operation %d of %d bytes", request.Op, n)
}

func fillWith(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(seed>>(i%8*8)) + byte(i)
	}
}

// next waits for one completion.
func next(t *testing.T, tr *verbs.Transport) transport.Completion {
	t.Helper()
	var done [1]transport.Completion
	eventually(t, "a completion", func() bool {
		n, err := tr.Poll(done[:])
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, tr.Wait(100*time.Millisecond))
		}
		return n == 1
	})
	return done[0]
}
