package shmem

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport/transporttest"
)

func TestConnectWithoutDescriptors(t *testing.T) {
	a, err := Open(Config{})
	require.NoError(t, err)
	b, err := Open(Config{})
	require.NoError(t, err)
	transporttest.ConnectWithoutDescriptors(t, a, b,
		func() func() { return sys.FailCall("accept4", syscall.EMFILE) })
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}

// TestListenerRestsInTraffic: a listener that was left alone, because a connection
// could not be taken, is looked at again in time, however much its goroutine has to do.
func TestListenerRestsInTraffic(t *testing.T) {
	p := newPair(t, 4096)
	defer p.close(0, 1)
	k := p.tr[0].connManager
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
	conn, err := dial(socketName(p.tr[0].name), begin.Add(soon))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, sys.Send(conn, []byte{1}))
	_, err = sys.WaitReadable([]*sys.FD{conn}, begin.Add(time.Second)) // it is sent away
	require.NoError(t, err, "the listener rests for as long as there is traffic")
	require.GreaterOrEqual(t, refused.Load(), int32(2))
	require.GreaterOrEqual(t, time.Since(begin), listenerRests)
}
