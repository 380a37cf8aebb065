package multihost

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// cutControls ends the control connections of this process, as their hosts see it, though
// all ranks live: those with one end at a listener.
func cutControls(t *testing.T, g *troupe) (num int) {
	listeners := map[uint16]bool{}
	for _, i := range g.domains[0].now.Load().participants.infos {
		listeners[i.Addr.Port()] = true
	}
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		own, err := syscall.Getsockname(fd)
		if err != nil {
			continue
		}
		if _, err := syscall.Getpeername(fd); err != nil {
			continue // it listens
		}
		if at, ok := own.(*syscall.SockaddrInet4); ok && listeners[uint16(at.Port)] {
			require.NoError(t, syscall.Shutdown(fd, syscall.SHUT_RDWR))
			num++
		}
	}
	return num
}

// TestControlsBreak: control connections that break are reconnected. No rank is taken for
// dead, words and agreement messages go on, and an update works.
func TestControlsBreak(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b", "b"}, nil)
	for round := range uint64(5) {
		require.GreaterOrEqual(t, cutControls(t, g), 4, "those between hosts, at least")
		for r, d := range g.domains {
			d.Control(r).Word(wordOff).Store(100*round + uint64(r))
		}
		for r, d := range g.domains {
			for remote := range d.Remote().Ranks().All() {
				eventually(t, "a word that was stored after the cut", func() bool {
					return d.Control(remote).Word(wordOff).Load() == 100*round+uint64(remote)
				})
				require.NoError(t, d.Process(remote).Lost())
			}
			require.Equal(t, rankset.Upto(4), ranksOf(d.Members().Load()), "rank %d", r)
		}
		g.exchange(fmt.Sprint(round, " after a cut of "))
	}
	reconnects := uint64(0)
	for _, d := range g.domains {
		reconnects += d.now.Load().view.controls.Load().Stats().Reconnects
	}
	require.GreaterOrEqual(t, reconnects, uint64(2*4*5))
	changes, joined, err := g.reconnect(rankset.Upto(4), nil)
	require.NoError(t, err)
	g.begin(2, changes, joined)
	g.everySet(rankset.Upto(4), rankset.Upto(4))
	require.NoError(t, g.domains[3].Close())
	g.domains[3] = nil
	for r := range 2 {
		eventually(t, "it has closed", func() bool { return g.domains[r].Process(3).Dying() })
		require.NoError(t, g.domains[r].Process(3).Lost(), "not dead: it sent a shutdown notice")
	}
}

// TestUpdateAtOnePort: a port that was given serves every rendezvous.
func TestUpdateAtOnePort(t *testing.T) {
	g := newTroupe(t, []string{"a", "b"}, nil)
	for r, d := range g.domains {
		d.cfg.Listen = d.now.Load().participants.infos[r].Addr // as if it had been given
	}
	for epoch := membership.Epoch(2); epoch < 5; epoch++ {
		changes, joined, err := g.reconnect(rankset.Of(0, 1), nil)
		require.NoError(t, err)
		g.begin(epoch, changes, joined)
		g.exchange(fmt.Sprint(epoch))
	}
}
