package link

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/accept"
	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/wire"
)

// TestAcceptsInTurns: connections that come without end do not hold the goroutine that
// beats and hears; a connection that waits is taken in the next turn.
func TestAcceptsInTurns(t *testing.T) {
	e, err := Listen(loopback())
	require.NoError(t, err)
	c := &Controls{cfg: ControlConfig{ID: newID(), Keys: wire.GenerateKeyring()}, listener: e.fd,
		tokens: map[uint64]*conn{}, listenerClosed: make(chan struct{})}
	require.NoError(t, c.open(nil))
	defer func() {
		c.shut()
		c.dropBell()
		require.NoError(t, c.poller.Close())
	}()
	var fds []*sys.FD
	defer func() { sys.CloseAll(fds...) }()
	for range accept.InARow + 1 {
		fd, err := sys.DialTCP(e.Addr(), sys.TCPOptions{})
		if fd == nil {
			require.NoError(t, err)
		}
		fds = append(fds, fd)
		_, err = sys.WaitSocket(fd, true, c.bell, time.Now().Add(testTimeout))
		require.NoError(t, err)
	}
	c.accept()
	require.Len(t, c.pending.All(), accept.InARow)
	var events sys.PollEvents
	ready, err := c.poller.Poll(&events)
	require.NoError(t, err)
	for _, r := range ready {
		c.serve(r)
	}
	require.Len(t, c.pending.All(), accept.InARow+1, "who waits is reported again")
}
