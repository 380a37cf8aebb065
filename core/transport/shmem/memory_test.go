package shmem

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
	require.ErrorContains(t, err, "shmem.NewMemory")
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

// TestTouchedIsNotReleased plays a peer that was stopped in the middle of a
// copy: what it may still write into is not released, until it dies.
func TestTouchedIsNotReleased(t *testing.T) {
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

// TestTakenBackMeanwhile closes a region, and retires a peer, between the first
// look and the copy: nothing is copied.
func TestTakenBackMeanwhile(t *testing.T) {
	for _, what := range []string{"region", "endpoint"} {
		t.Run(what, func(t *testing.T) {
			p := connected(t, 4096)
			p.send(0, transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: p.piece(0, 0, 1), Remote: p.region[1].Remote()})
			p.await(1, 0) // the memory is mapped
			copy(p.memory[0].Bytes(), "secret")
			e := p.ep[0]
			e.mu.Lock()
			require.NoError(t, e.postSend(&transport.SendRequest{ID: 2, Op: transport.OpWrite, Local: p.piece(0, 0, 6), Remote: p.region[1].Remote()}))
			_, l := e.reach(&e.sends.all[e.direct.front()])
			require.Equal(t, found, l)
			if what == "region" {
				p.tr[1].table.hide(p.region[1].Remote().Key) // as Region.Close begins
			} else {
				require.NoError(t, p.ep[1].Retire())
			}
			e.copyChunk(&e.direct, e.direct.front())
			e.toRun()
			e.mu.Unlock()
			require.NotContains(t, string(p.memory[1].Bytes()), "secret")
			require.NotEqual(t, transport.StatusOK, p.await(2, 0).Status)
			require.Zero(t, e.touching.Load())
			p.close(0)
			p.region[1].(*Region).hidden = true
			p.close(1)
		})
	}
}

// TestDyingTakesNothing: the kernel marks the end of a process at once, long
// before its connections end.
func TestDyingTakesNothing(t *testing.T) {
	p := connected(t, 4096)
	p.recv(1, 1, nil)
	p.tr[1].table.word(tableHolderOff).Or(ownerDied)
	p.send(0, transport.SendRequest{ID: 2, Op: transport.OpSend})
	require.Equal(t, transport.StatusUnreachable, p.await(2, 0).Status)
	p.close(0, 1)
}

func TestReadEnd(t *testing.T) {
	const ok, short = uint64(transport.StatusOK) << 8, uint64(transport.StatusLocal) << 8
	for _, c := range []struct {
		word, bytes uint64
		good        bool
	}{
		{uint64(transport.OpRecv) | ok, 10, true},
		{uint64(transport.OpRecv) | ok, 0, true},
		{uint64(transport.OpRecv) | ok, 11, false},
		{uint64(transport.OpRecv) | ok | 1<<32, 10, false},
		{uint64(transport.OpRecv) | ok | 1<<16, 10, false},
		{uint64(transport.OpRecv) | short, 1 << 63, true},
		{uint64(transport.OpRecvImm) | ok | 77<<32, MaxRequestBytes, true},
		{uint64(transport.OpRecvImm) | ok, MaxRequestBytes + 1, false},
		{uint64(transport.OpSend) | ok, 1, false},
		{uint64(transport.OpRecv) | uint64(transport.StatusOther)<<8, 1, false},
		{0, 0, false},
	} {
		got, good := readEnd(c.word, c.bytes, 10)
		require.Equal(t, c.good, good, "%#x, %d", c.word, c.bytes)
		if good && got.Status == transport.StatusOK {
			require.Equal(t, c.bytes, uint64(got.NumBytes))
			require.Equal(t, uint32(c.word>>32), got.Imm)
		}
	}
}

// TestClosedRegion: its key is worth nothing, though its memory is mapped.
func TestClosedRegion(t *testing.T) {
	p := connected(t, 4096)
	part, err := p.tr[1].Register(p.memory[1].Bytes()[1000:], transport.AccessWrite)
	require.NoError(t, err)
	q := transport.SendRequest{ID: 1, Op: transport.OpWrite, Local: p.piece(0, 0, 10), Remote: part.Remote()}
	p.send(0, q)
	require.Equal(t, transport.StatusOK, p.await(1, 0).Status)
	require.NoError(t, part.Close())
	q.ID = 2
	p.send(0, q)
	require.Equal(t, transport.StatusRemote, p.await(2, 0).Status)
	require.Equal(t, uint32(VendorRegion), p.done[2].Vendor)
	p.close(0, 1)
}

// TestBell rings between the last look and the sleep.
func TestBell(t *testing.T) {
	s, err := newShared("bell", bellBytes)
	require.NoError(t, err)
	defer s.close()
	mine, theirs := newBell(s.Bytes()), newBell(s.Bytes())
	theirs.ring(70) // no goroutine sleeps: only the news tell
	awake := make(chan error, 1)
	go func() { awake <- mine.sleep(2*soon, mine.hasNews) }()
	select {
	case err := <-awake:
		require.NoError(t, err)
	case <-time.After(soon):
		t.Fatal("a ring was lost")
	}
}
