package proxy

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cuda/fifo"
	"github.com/moewire/moewire/core/ep/protocol"
)

// TestSettle: what was pushed before is posted once it holds, in as many looks as that
// takes; so are waits of callers that ask together.
func TestSettle(t *testing.T) {
	b := newBench(t, 1, 8, 4)
	_, err := b.step()
	require.NoError(t, err)
	b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend, Bytes: 8, Number: b.generation + 1})
	first := b.p.Settle()
	second := b.p.Settle()
	b.remote.posting = func() { require.False(t, b.p.Settled(first)) }
	b.remote.posting()
	for looks := 0; !b.p.Settled(second); looks++ {
		require.Less(t, looks, 2)
		_, err = b.step()
		require.NoError(t, err)
	}
	require.True(t, b.p.Settled(first))
	require.Equal(t, Stats{Sent: 1}, b.p.Stats())
	third := b.p.Settle()
	require.False(t, b.p.Settled(third))
	b.p.cfg.Queue.End(ReasonStopped)
	require.True(t, b.p.Settled(third))
}

// TestSettleWhileItNaps: a caller that asks wakes the proxy.
func TestSettleWhileItNaps(t *testing.T) {
	b := newBench(t, 1, 4, 1)
	p := b.p
	p.cfg.Nap, p.cfg.Spins = time.Second, 1
	next, err := p.Start(b.remote)
	require.NoError(t, err)
	b.dev.Next.Store(next)
	awaitLease(t, p, 0, next+1)
	b.dev.Try(fifo.Descriptor{What: protocol.RemoteSend, Bytes: 8, Number: next + 1})
	ticket := p.Settle()
	eventually(t, func() bool { return p.Settled(ticket) })
	require.Equal(t, Stats{Sent: 1}, p.Stats())
	p.Stop()
}
