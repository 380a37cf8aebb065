package multihost

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// TestReportedDeath: a rank speaks for ranks of its own host, and for no others.
func TestReportedDeath(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "b", "c"}, nil)
	tell := func(from int, ranks uint64) {
		b := binary.LittleEndian.AppendUint64([]byte{kindEnded}, ranks)
		require.True(t, g.domains[from].now.Load().view.controls.Load().Send(3, b))
	}
	dead := func(rank int) bool { return errors.Is(g.domains[3].Process(rank).Lost(), domain.ErrExited) }
	tell(2, 0b0011)                                                                             // of another host
	tell(1, 1<<1)                                                                               // itself
	tell(1, 1<<3)                                                                               // the one that is told
	tell(1, 1<<60)                                                                              // no rank
	tell(1, 1<<2)                                                                               // of another host
	require.True(t, g.domains[1].now.Load().view.controls.Load().Send(3, []byte{kindEnded, 1})) // cut off
	time.Sleep(100 * time.Millisecond)
	for rank := range 3 {
		require.False(t, dead(rank), "rank %d", rank)
	}
	tell(1, 1<<0)
	eventually(t, "rank 0 is dead", func() bool { return dead(0) })
	require.False(t, dead(1))
	require.True(t, g.domains[3].Process(0).Dying())
}

// leftOut is shared memory after an update without a rank, of which there is no process then,
// and another rank that has ended.
type leftOut struct {
	domain.Domain
	out, dead int
}

func (d leftOut) Process(rank int) domain.Process {
	switch p := d.Domain.Process(rank); rank {
	case d.out:
		return nil
	case d.dead:
		return deadProcess{p}
	default:
		return p
	}
}

type deadProcess struct{ domain.Process }

func (deadProcess) Lost() error { return domain.ErrExited }

// TestLocalRankLeftOut: the watcher of a host's processes passes over a rank that an
// update has left out while the view before it still ticks, and goes on with the others.
func TestLocalRankLeftOut(t *testing.T) {
	g := newTroupe(t, []string{"a", "a", "a", "b"}, nil)
	now := g.domains[0].now.Load().view
	v := &view{local: leftOut{now.local, 1, 2}, participants: now.participants}
	v.controls.Store(now.controls.Load())
	v.live.Store(true)
	v.watchLocal()
	require.EqualValues(t, rankset.Of(2), v.ended)
	lost := func(rank int) bool { return errors.Is(g.domains[3].Process(rank).Lost(), domain.ErrExited) }
	eventually(t, "rank 3 is told of rank 2", func() bool { return lost(2) })
	require.False(t, lost(1))
}
