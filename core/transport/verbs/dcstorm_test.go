package verbs

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/transport"
)

// TestDCStorm posts from several goroutines to more peers than there are
// initiators, while requests and resets fail and endpoints are retired: what was
// accepted ends once each, and everything can be closed.
func TestDCStorm(t *testing.T) {
	seed := testenv.Seed(t)
	for round := range uint64(12) {
		dcStorm(t, rand.New(rand.NewPCG(seed, round)))
	}
}

const (
	stormPairs    = 5
	stormRequests = 60
)

func dcStorm(t *testing.T, rng *rand.Rand) {
	withMlx5(t)
	f := newFake(t)
	tr, err := f.tryOpen(Config{DC: true, NumDCIs: 1 + rng.IntN(2), NumEndpoints: 2 * stormPairs})
	require.NoError(t, err)
	f.moves = true
	region, err := tr.Register(f.arena.Bytes()[:4096], both)
	require.NoError(t, err)
	var ends []transport.Endpoint
	for range stormPairs {
		a, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 2})
		require.NoError(t, err)
		b, err := tr.NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 2})
		require.NoError(t, err)
		join(t, a, b)
		ends = append(ends, a, b)
	}
	f.spoil(rng)

	var posters sync.WaitGroup
	accepted := make([]int, len(ends))
	for i, e := range ends {
		posters.Go(func() { accepted[i] = stormPost(t, e, uint64(i), region) })
	}
	retired, when := ends[rng.IntN(len(ends))], rng.IntN(50)
	posters.Go(func() {
		for range when {
			runtime.Gosched()
		}
		assert.NoError(t, retireAgain(retired))
	})
	ended := stormPoll(t, tr, &posters)
	for i, e := range ends {
		require.NoError(t, retireAgain(e))
		require.Equal(t, stormRequests, accepted[i])
	}
	for _, e := range ends {
		closeEndpoint(t, tr, e)
	}
	require.Len(t, ended, len(ends)*stormRequests)
	for i := range tr.dcPort.pool.dcis {
		d := &tr.dcPort.pool.dcis[i]
		require.True(t, d.peer == nil && d.outstanding == 0, "%+v", *d)
	}
	require.Empty(t, tr.dcPort.pool.waiting)
	require.Zero(t, tr.NumStrays())
	require.NoError(t, region.Close())
	require.NoError(t, tr.Close())
}

// spoil makes some requests fail, and some changes of state.
func (f *fakeLib) spoil(rng *rand.Rand) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range 2 * stormPairs * stormRequests {
		status := libibverbs.WCSuccess
		if rng.IntN(100) == 0 {
			status = libibverbs.WCRetryExcErr
		}
		f.ends = append(f.ends, status)
	}
	if rng.IntN(3) == 0 {
		f.failures["modify_qp"] = append(make([]syscall.Errno, 1+rng.IntN(20)), syscall.ENOMEM)
	}
	if rng.IntN(3) == 0 {
		f.failures["wr_complete"] = append(make([]syscall.Errno, rng.IntN(40)), syscall.EIO)
	}
}

// retireAgain retires an endpoint, a second time where the spoilt call of the
// device is among the first's.
func retireAgain(e transport.Endpoint) error {
	err := e.Retire()
	if errors.Is(err, syscall.ENOMEM) {
		return e.Retire()
	}
	return err
}

// stormPost posts all requests of an endpoint, however it fares.
func stormPost(t *testing.T, e transport.Endpoint, n uint64, region transport.Region) (accepted int) {
	for accepted < stormRequests {
		r := transport.SendRequest{
			ID: n<<32 | uint64(accepted), Op: transport.OpWrite,
			Local:  []transport.Piece{{Region: region, Off: int(n) * 64, Bytes: 64}},
			Remote: region.Remote(), RemoteOff: 2048 + n*64, Inline: accepted%3 == 0,
		}
		k, err := e.PostSend([]transport.SendRequest{r})
		accepted += k
		if err != nil {
			if !assert.True(t, errors.Is(err, transport.ErrWouldBlock), "%v", err) {
				return accepted
			}
			runtime.Gosched()
		}
	}
	return accepted
}

// stormPoll polls until the posters have ended and everything has come back,
// once each.
func stormPoll(t *testing.T, tr *Transport, posters *sync.WaitGroup) map[uint64]bool {
	over := make(chan struct{})
	go func() { posters.Wait(); close(over) }()
	ended := map[uint64]bool{}
	var done [16]transport.Completion
	for until, posting := time.Now().Add(testTimeout), true; ; {
		n, err := tr.Poll(done[:])
		require.NoError(t, err)
		for _, c := range done[:n] {
			require.False(t, ended[c.ID], "%+v", c)
			ended[c.ID] = true
		}
		if n > 0 {
			continue
		}
		if !posting && len(ended) == 2*stormPairs*stormRequests {
			return ended
		}
		require.True(t, time.Now().Before(until), "%d ended", len(ended))
		select {
		case <-over:
			posting = false
		default:
			runtime.Gosched()
		}
	}
}
