package mapped

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

func TestOnlyMappedMemory(t *testing.T) {
	tr, err := Open(Config{})
	require.NoError(t, err)
	defer tr.Close()
	_, err = tr.Register(make([]byte, 4096), transport.AccessWrite)
	require.ErrorContains(t, err, "mapped.NewMemory")
	m, err := NewMemory(10000)
	require.NoError(t, err)
	all := m.Bytes()
	_, err = tr.Register(all[:10000:10000][5000:], 4)
	require.ErrorContains(t, err, "access")
	r, err := tr.Register(all[5000:], 0)
	require.NoError(t, err)
	require.ErrorIs(t, m.Close(), transport.ErrBusy)
	require.NoError(t, r.Close())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	for _, size := range []int64{0, -1, MaxMemoryBytes + 1} {
		_, err = NewMemory(size)
		require.ErrorContains(t, err, "sizeBytes")
	}
	for _, n := range []int{-1, MaxEndpoints + 1} {
		_, err = Open(Config{NumEndpoints: n})
		require.ErrorContains(t, err, "NumEndpoints")
	}
}

func TestTablesAreBounded(t *testing.T) {
	tr, err := Open(Config{})
	require.NoError(t, err)
	m, err := NewMemory(1)
	require.NoError(t, err)
	var list []transport.Region
	for range MaxRegions {
		r, err := tr.Register(m.Bytes(), transport.AccessRead)
		require.NoError(t, err)
		list = append(list, r)
	}
	_, err = tr.Register(m.Bytes(), transport.AccessRead)
	require.ErrorIs(t, err, transport.ErrNoResource)
	r, err := tr.Register(m.Bytes(), 0) // peers cannot reach it: no row
	require.NoError(t, err)
	for _, r := range append(list, r) {
		require.NoError(t, r.Close())
	}
	require.NoError(t, m.Close())
	var memories []*Memory
	list = list[:0]
	for i := range MaxMemories + 1 {
		m, err := NewMemory(1)
		require.NoError(t, err)
		memories = append(memories, m)
		r, err := tr.Register(m.Bytes(), 0)
		if i == MaxMemories {
			require.ErrorIs(t, err, transport.ErrNoResource)
			break
		}
		require.NoError(t, err)
		list = append(list, r)
	}
	for _, r := range list {
		require.NoError(t, r.Close())
	}
	for _, m := range memories {
		require.NoError(t, m.Close())
	}
	require.NoError(t, tr.Close())
}

// TestPeerUnmaps: memory that its owner has given up is given up by peers, and
// other memory in its place is not taken for it.
func TestPeerUnmaps(t *testing.T) {
	before := sys.Stats()
	p := connected(t, 4096)
	idle := sys.Stats().Mappings
	write := func(id uint64) {
		p.send(0, transport.SendRequest{ID: id, Op: transport.OpWrite, Local: p.piece(0, 0, 100), Remote: p.region[1].Remote()})
		require.Equal(t, transport.StatusOK, p.await(id, 0).Status)
	}
	for round := range uint64(5) {
		copy(p.memory[0].Bytes(), bytes.Repeat([]byte{byte(round + 1)}, 100))
		write(round)
		require.Equal(t, p.memory[0].Bytes()[:100], p.memory[1].Bytes()[:100])
		require.Equal(t, idle+1, sys.Stats().Mappings, "the peer's memory")
		require.NoError(t, p.region[1].Close())
		require.NoError(t, p.memory[1].Close())
		require.Eventually(t, func() bool { p.poll(0); return sys.Stats().Mappings == idle-1 }, soon, time.Millisecond)
		var err error
		p.memory[1], err = NewMemory(4096)
		require.NoError(t, err)
		p.region[1], err = p.tr[1].Register(p.memory[1].Bytes(), transport.AccessWrite)
		require.NoError(t, err)
	}
	p.close(0, 1)
	require.Equal(t, before, sys.Stats())
}

// TestTouchedIsNotGivenBack plays a peer that was stopped in the middle of a
// copy: what it may still write into is not given back, until it dies.
func TestTouchedIsNotGivenBack(t *testing.T) {
	for _, end := range []string{"goes on", "dies"} {
		t.Run(end, func(t *testing.T) {
			p := connected(t, 4096)
			p.recv(0, 1, p.piece(0, 0, 100))
			other, err := p.tr[0].Register(p.memory[0].Bytes(), transport.AccessWrite)
			require.NoError(t, err)
			p.ep[1].touching.Store(touchingReceive)
			require.NoError(t, p.ep[0].Retire())
			for range 100 {
				p.poll(0)
			}
			require.Empty(t, p.done, "a receive that is being written")
			require.NoError(t, other.Close(), "that one is not touched")
			other, err = p.tr[0].Register(p.memory[0].Bytes(), transport.AccessWrite)
			require.NoError(t, err)
			p.ep[1].touching.Store(other.Remote().Key)
			require.ErrorIs(t, other.Close(), transport.ErrBusy)
			require.ErrorIs(t, p.ep[0].Close(), transport.ErrBusy)
			if end == "dies" {
				Kill(p.tr[1])
				require.NoError(t, p.memory[1].Close())
			} else {
				p.ep[1].untouch(other.Remote().Key)
			}
			require.Equal(t, transport.StatusFlushed, p.await(1, 0).Status)
			require.NoError(t, other.Close())
			p.close(0)
			if end != "dies" {
				p.close(1)
			}
		})
	}
}
