package node

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/wire"
)

// unmade is a buffer that was never connected.
func unmade() *Buffer { return &Buffer{name: "buffer 7", engine: &onCPU{}} }

// TestPathsWithoutDomain: while a join is being undone, there is a core but no domain for
// a moment.
func TestPathsWithoutDomain(t *testing.T) {
	_, err := unmade().Paths()
	require.ErrorIs(t, err, ep.ErrInvalid)
	require.ErrorContains(t, err, "buffer 7 is not connected yet")
}

// TestPathsOfClosed: a call has found the buffer before it was closed.
func TestPathsOfClosed(t *testing.T) {
	for _, dom := range []*multihost.Domain{nil, pairOfDomains(t)[0]} {
		b := unmade()
		b.closed, b.dom = true, dom
		_, err := b.Paths()
		require.ErrorIs(t, err, ep.ErrClosed)
		require.ErrorContains(t, err, "buffer 7 was closed")
	}
}

// TestCommitIsNotForgotten: an epoch whose ranks could not be put in place does
// not begin at the next call, either.
func TestCommitIsNotForgotten(t *testing.T) {
	d := pairOfDomains(t)
	var listeners [2]*multihost.Listener
	all := make([][]byte, 2)
	for r := range d {
		var err error
		listeners[r], err = multihost.Relist(d[r], nil)
		require.NoError(t, err)
		all[r] = listeners[r].Metadata()
	}
	changes := both(t, func(r int) (*multihost.Change, error) { return listeners[r].Reconnect(all, 20*time.Second) })
	b := &Buffer{rendezvous: rendezvous{change: changes[0]}}
	changes[0].Abort() // as if the domain had taken another change
	require.Error(t, b.commit())
	require.Error(t, b.commit(), "the change was forgotten")
	b = &Buffer{rendezvous: rendezvous{change: changes[1]}}
	require.NoError(t, b.commit())
	require.NoError(t, b.commit(), "once is enough")
}

func both[T any](t *testing.T, f func(r int) (T, error)) (out [2]T) {
	var errs [2]error
	var wg sync.WaitGroup
	for r := range out {
		wg.Add(1)
		go func() { defer wg.Done(); out[r], errs[r] = f(r) }()
	}
	wg.Wait()
	require.NoError(t, errs[0])
	require.NoError(t, errs[1])
	return out
}

// pairOfDomains makes two ranks of this process that share memory.
func pairOfDomains(t *testing.T) [2]*multihost.Domain {
	var listeners [2]*multihost.Listener
	all := make([][]byte, 2)
	for r := range listeners {
		var err error
		listeners[r], err = multihost.Open(multihost.Config{
			Shm:  shm.Config{Rank: r, NumRanks: 2, ControlBytes: 4096, ABIVersion: 1},
			Keys: wire.GenerateKeyring(), Listen: netip.MustParseAddrPort("127.0.0.1:0"),
		})
		require.NoError(t, err)
		all[r] = listeners[r].Metadata()
	}
	d := both(t, func(r int) (*multihost.Domain, error) { return listeners[r].Connect(all, 20*time.Second) })
	t.Cleanup(func() {
		for _, d := range d {
			require.NoError(t, d.Close())
		}
	})
	return d
}

// TestCloseWipesKeys: a closed buffer holds no key.
func TestCloseWipesKeys(t *testing.T) {
	b := unmade()
	require.NoError(t, b.Close(), "without keys")
	b.open.Keys = wire.GenerateKeyring()
	id := b.open.Keys.Current()
	require.True(t, b.open.Keys.Has(id))
	require.NoError(t, b.Close())
	require.False(t, b.open.Keys.Has(id))
}
