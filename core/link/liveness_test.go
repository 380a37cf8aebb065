package link

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// livenessPort is a rank's, in the hands of the test.
type livenessPort struct {
	net.Listener
	came chan struct{}
}

func newLivenessPort(t *testing.T) *livenessPort {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &livenessPort{l, make(chan struct{}, 1000)}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			_ = conn.Close()
			p.came <- struct{}{}
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return p
}

func (p *livenessPort) addr() netip.AddrPort { return netip.MustParseAddrPort(p.Addr().String()) }

// mortals are two ranks of which the first is watched by the test: the relay
// stands for its listener, and the port for its liveness.
func mortals(t *testing.T, port netip.AddrPort, handler Handler) (watcher, watched *member, listener *relay) {
	keys := oneKey()
	members := [2]*member{}
	for r := range members {
		e, err := Listen(loopback())
		require.NoError(t, err)
		members[r] = &member{log: newLog(), listener: e, id: newID()}
	}
	watched, watcher = members[0], members[1]
	listener = newRelay(t, watched.listener.Addr())
	others := [2]Participant{
		{ID: watcher.id, Addr: watcher.listener.Addr(), Liveness: watcher.listener.Liveness()},
		{ID: watched.id, Addr: listener.addr(), Liveness: port},
	}
	for r, m := range members {
		var h Handler = m.log
		if r == 0 && handler != nil {
			h = handler
		}
		var err error
		m.Controls, err = StartControls(ControlConfig{Rank: r, ID: m.id, Keys: keys(r), Tick: 5 * time.Millisecond},
			m.listener, map[int]Participant{1 - r: others[r]}, h)
		require.NoError(t, err)
		t.Cleanup(func() { _ = m.Close() })
	}
	watcher.awaitUp(t, 1<<0)
	return watcher, watched, listener
}

// settle lets so much time pass that an end would have been noticed.
const settle = 300 * time.Millisecond

// TestLivenessPortSaysIt: where the connection tells nothing of a process that has ended, its
// liveness port does, and before that is closed the process may be alive.
func TestLivenessPortSaysIt(t *testing.T) {
	var watcher *member
	var listener *relay
	stuck := &reluctant{log: newLog(), free: make(chan struct{})}
	for _, c := range []struct {
		name    string
		handler Handler // of the one that is watched
		end     func(t *testing.T)
	}{
		{"another process has its port and takes connections", nil, func(*testing.T) {
			listener.refuse.Store(1 << 40) // it takes them and ends them
			listener.reset(false)
		}},
		{"its connection stays open and nothing is heard", stuck, func(t *testing.T) {
			t.Cleanup(func() { close(stuck.free) })
			require.True(t, watcher.Send(0, []byte("it hangs")))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			port := newLivenessPort(t)
			watcher, _, listener = mortals(t, port.addr(), c.handler)
			<-port.came
			c.end(t)
			time.Sleep(settle)
			watcher.log.mu.Lock()
			require.Empty(t, watcher.log.ended)
			watcher.log.mu.Unlock()
			require.NoError(t, port.Close())
			watcher.log.until(t, "the death", func() bool { return watcher.log.ended[0] == EndExited })
		})
	}
}

// TestLivenessPortOutOfReach: where no connection ever came about, as behind a
// firewall, a refusal says nothing.
func TestLivenessPortOutOfReach(t *testing.T) {
	port := newLivenessPort(t)
	require.NoError(t, port.Close())
	watcher, _, listener := mortals(t, port.addr(), nil)
	listener.refuse.Store(1 << 40)
	listener.reset(false)
	time.Sleep(settle)
	listener.refuse.Store(0)
	before := watcher.Stats().Reconnects
	eventually(t, func() bool { return watcher.Stats().Reconnects > before })
	watcher.log.mu.Lock()
	defer watcher.log.mu.Unlock()
	require.Empty(t, watcher.log.ended)
}

// TestNotifiedOfExit: an end that another rank knows of ends the conversation, once.
func TestNotifiedOfExit(t *testing.T) {
	watcher, watched, _ := mortals(t, netip.AddrPort{}, nil)
	watched.awaitUp(t, 1<<1)
	require.True(t, watched.Send(1, []byte("said before")))
	watcher.log.until(t, "it", func() bool { return len(watcher.log.heard[0]) == 1 })
	watcher.Exited(7, errors.New("nobody"))
	watcher.Exited(0, errors.New("killed"))
	watcher.Exited(0, errors.New("killed"))
	watcher.log.until(t, "the death", func() bool { return watcher.log.ended[0] == EndExited })
	require.Zero(t, watcher.Ranks())
	require.False(t, watcher.Send(0, []byte("into the void")))
}
