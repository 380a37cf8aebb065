package mapped

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// TestConnectWithoutDescriptors: when no connection can be taken, both sides end by
// their deadline, no processor is burnt, and who could not take it says why. With
// descriptors again, the same transports connect.
func TestConnectWithoutDescriptors(t *testing.T) {
	const deadline = 400 * time.Millisecond
	p := newPair(t, 4096)
	defer func() { require.NoError(t, errors.Join(p.tr[0].Close(), p.tr[1].Close())) }()
	busy := func() time.Duration {
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	stop := sys.InjectFaults(func(call string) error {
		if call == "accept4" {
			return syscall.EMFILE
		}
		return nil
	})
	defer stop()
	var ends [2]*Endpoint
	for i := range ends {
		ends[i] = p.ep[i]
	}
	begin, before := time.Now(), busy()
	errs := make(chan error, 2)
	for i := range ends {
		go func() { errs <- ends[i].Connect(ends[1-i].Local(), begin.Add(deadline)) }()
	}
	err := errors.Join(<-errs, <-errs)
	require.LessOrEqual(t, time.Since(begin), deadline+time.Second)
	require.LessOrEqual(t, busy()-before, deadline/2)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, "accept4: too many open files, limit ")
	for i := range ends {
		require.NoError(t, ends[i].Retire())
		require.NoError(t, ends[i].Close())
	}
	stop()
	for i := range p.ep {
		ep, err := p.tr[i].NewEndpoint(transport.EndpointSpec{SendDepth: 8, RecvDepth: 8})
		require.NoError(t, err)
		p.ep[i] = ep.(*Endpoint)
	}
	p.connect()
	for i := range p.ep {
		require.NoError(t, p.ep[i].Retire())
		require.NoError(t, p.ep[i].Close())
		require.NoError(t, p.region[i].Close())
	}
}

// TestListenerRestsInTraffic: a listener that was left alone, because a connection
// could not be taken, is looked at again in time, however much its goroutine has to do.
func TestListenerRestsInTraffic(t *testing.T) {
	p := newPair(t, 4096)
	defer p.close(0, 1)
	k := p.tr[0].keeper
	busy, err := sys.NewEvent()
	require.NoError(t, err)
	defer busy.Close()
	require.NoError(t, sys.Signal(busy))
	require.NoError(t, k.epoll.Add(busy, -1)) // no connection's, and always to be read
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default: // without a pause: a gap would be the rest that it waits for
				_ = k.epoll.Rearm(busy, -1)
			}
		}
	}()
	defer func() { close(over); <-ended; _ = k.epoll.Remove(busy) }()
	var refused atomic.Int32
	stop := sys.InjectFaults(func(call string) error {
		if call == "accept4" && refused.Add(1) == 1 {
			return syscall.EMFILE
		}
		return nil
	})
	defer stop()
	begin := time.Now()
	stranger, err := dial(socketName(p.tr[0].name), begin.Add(soon))
	require.NoError(t, err)
	defer stranger.Close()
	require.NoError(t, sys.Send(stranger, []byte{1}))
	_, err = sys.WaitReadable([]*sys.FD{stranger}, begin.Add(time.Second)) // it is sent away
	require.NoError(t, err, "the listener rests for as long as there is traffic")
	require.GreaterOrEqual(t, refused.Load(), int32(2))
	require.GreaterOrEqual(t, time.Since(begin), listenerRests)
}
