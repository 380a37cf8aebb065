package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/medium"
)

// mapped tells when the memory of a store is given back.
type mapped struct {
	*medium.Memory
	closed bool
}

func (m *mapped) Close() error {
	m.closed = true
	return m.Memory.Close()
}

func newMapped(t *testing.T) *mapped {
	m, err := medium.NewMemory(medium.LeastSegments * medium.LeastSegmentBytes)
	require.NoError(t, err)
	return &mapped{Memory: m}
}

// TestLeaseOutlivesClose: what a closed store in memory has lent stays readable until the last lease and the last Writing end.
func TestLeaseOutlivesClose(t *testing.T) {
	for seed := range uint64(8) {
		leaseOutlivesClose(t, testenv.Seed(t)+seed)
	}
}

func leaseOutlivesClose(t *testing.T, seed uint64) {
	m := newMapped(t)
	w := newWorld(t, seed, m, Config{})
	want := payload("a", 1, 5000)
	require.NoError(t, w.put("a", "", want))
	leases := make([]Lease, 2)
	require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte("a"), []byte("b")}, leases))
	writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte("c"), Bytes: 100})
	require.NoError(t, err)
	data := leases[0].Data()
	require.NoError(t, w.s.Close())
	require.Equal(t, want, append([]byte{}, data...))
	got := make([]byte, 5000)
	require.NoError(t, leases[0].Read(0, got))
	require.Equal(t, want, got)
	require.Zero(t, w.s.Acquire(w.ns, [][]byte{[]byte("a")}, leases[1:]), "a closed store lends nothing")
	clear(writing.Buffer())
	ends := []func(){leases[0].Release, writing.Abort}
	first := w.rng.IntN(2)
	ends[first]()
	require.False(t, m.closed)
	ends[1-first]()
	require.True(t, m.closed)
	require.Nil(t, leases[0].Data())
	require.Error(t, leases[0].Read(0, got))
	require.NoError(t, w.s.Close())
}

// TestClosedWithoutLeases gives the memory back at once.
func TestClosedWithoutLeases(t *testing.T) {
	m := newMapped(t)
	w := newWorld(t, testenv.Seed(t), m, Config{})
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	require.NotNil(t, w.get("a"))
	require.NoError(t, w.s.Close())
	require.True(t, m.closed)
	_, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte("c"), Bytes: 100})
	require.ErrorIs(t, err, ErrClosed)
	require.Nil(t, w.get("a"))
}

// TestFilesLeaseAfterClose: a lease of a closed store in files fails to read.
func TestFilesLeaseAfterClose(t *testing.T) {
	f, err := medium.OpenFiles(t.TempDir(), medium.LeastSegments*medium.LeastSegmentBytes)
	require.NoError(t, err)
	w := newWorld(t, testenv.Seed(t), f, Config{Secret: f.Secret()})
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	leases := make([]Lease, 1)
	require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte("a")}, leases))
	require.NoError(t, w.s.Close())
	require.Error(t, leases[0].Read(0, make([]byte, 100)))
	leases[0].Release()
}

// TestCommitAfterClose: a Writing ends with an error once the store is closed, if its key has got another block.
func TestCommitAfterClose(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newMapped(t), Config{})
	writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte("a"), Bytes: 100})
	require.NoError(t, err)
	clear(writing.Buffer())
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	require.NoError(t, w.s.Close())
	ends(t, "a commit", func() { require.ErrorIs(t, writing.Commit(), ErrClosed) })
}

// TestCloseFlushes: what was put and deleted before Close is so after a power cut.
func TestCloseFlushes(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	for _, key := range []string{"a", "b"} {
		require.NoError(t, w.put(key, "", payload(key, 1, 100)))
	}
	require.NoError(t, w.s.sealAllOpen())
	require.True(t, w.delete("a"))
	require.NoError(t, w.s.Close())
	w.open(d.ends()[1])
	require.Equal(t, []bool{false, true}, []bool{w.has("a"), w.has("b")})
}
