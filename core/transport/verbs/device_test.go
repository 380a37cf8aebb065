package verbs

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// small is a device with a queue that is made quickly.
var small = Config{NumEndpoints: 16}

// testTimeout bounds every wait for something that must happen.
const testTimeout = 30 * time.Second

// openDevice opens a real device, or skips the test.
func openDevice(t *testing.T, config Config) *Transport {
	t.Helper()
	tr, err := New(config)
	if errors.Is(err, transport.ErrNotSupported) {
		testenv.Lacking(t, "verbs", err.Error())
	}
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tr.Close())
		require.NoError(t, tr.Close())
	})
	return tr
}

// memory is memory outside the Go heap, registered and for peers.
func memory(t *testing.T, tr *Transport, n int, access transport.Access) transport.Region {
	t.Helper()
	m, err := sys.MapAnonymous(int64(n))
	require.NoError(t, err)
	r, err := tr.Register(m.Bytes(), access)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		require.NoError(t, m.Unmap())
	})
	return r
}

const both = transport.AccessRead | transport.AccessWrite

// newEndpoint makes an endpoint that is retired, drained and closed at the end.
func newEndpoint(t *testing.T, tr *Transport, depth int) transport.Endpoint {
	t.Helper()
	e, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: depth, RecvDepth: depth})
	require.NoError(t, err)
	t.Cleanup(func() { closeEndpoint(t, tr, e) })
	return e
}

func closeEndpoint(t *testing.T, tr *Transport, e transport.Endpoint) {
	t.Helper()
	require.NoError(t, e.Retire())
	var done [64]transport.Completion
	for until := time.Now().Add(testTimeout); ; {
		err := e.Close()
		if err == nil {
			return
		}
		require.ErrorIs(t, err, transport.ErrBusy)
		require.True(t, time.Now().Before(until), "not drained: %v", err)
		_, err = tr.Poll(done[:])
		require.NoError(t, err)
	}
}

// connected makes a pair of endpoints on one device.
func connected(t *testing.T, tr *Transport, depth int) (a, b transport.Endpoint) {
	t.Helper()
	a, b = newEndpoint(t, tr, depth), newEndpoint(t, tr, depth)
	join(t, a, b)
	return a, b
}

func join(t *testing.T, a, b transport.Endpoint) {
	t.Helper()
	until := time.Now().Add(testTimeout)
	require.NoError(t, a.Connect(b.Local(), until))
	require.NoError(t, b.Connect(a.Local(), until))
	require.Equal(t, transport.StateReady, a.State())
	require.Equal(t, transport.StateReady, b.State())
}

// await waits for n completions, by id.
func await(t *testing.T, tr *Transport, n int) map[uint64]transport.Completion {
	t.Helper()
	all := map[uint64]transport.Completion{}
	var done [16]transport.Completion
	for until := time.Now().Add(testTimeout); len(all) < n; {
		k, err := tr.Poll(done[:])
		require.NoError(t, err)
		for _, c := range done[:k] {
			require.NotContains(t, all, c.ID)
			all[c.ID] = c
		}
		if k == 0 {
			require.True(t, time.Now().Before(until), "%d of %d completions: %v", len(all), n, all)
			require.NoError(t, tr.Wait(time.Second))
		}
	}
	return all
}

func post(t *testing.T, e transport.Endpoint, requests ...transport.SendRequest) {
	t.Helper()
	n, err := e.PostSend(requests)
	require.NoError(t, err)
	require.Equal(t, len(requests), n)
}

func postRecv(t *testing.T, e transport.Endpoint, requests ...transport.RecvRequest) {
	t.Helper()
	n, err := e.PostRecv(requests)
	require.NoError(t, err)
	require.Equal(t, len(requests), n)
}

func whole(r transport.Region) []transport.Piece {
	return []transport.Piece{{Region: r, Bytes: len(r.Bytes())}}
}
