package store

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/medium"
)

func memory(t *testing.T) *world {
	m, err := medium.NewMemory(64 << 20)
	require.NoError(t, err)
	return newWorld(t, 1, m, Config{})
}

// Reserved are the records of blocks that are being written, however they end.
func TestReserved(t *testing.T) {
	w := memory(t)
	one := (&index.Block{PayloadBytes: 5000, KeyBytes: 1}).RecordBytes()
	var writings []*Writing
	for i := range 4 {
		writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte{byte('a' + i)}, Bytes: 5000})
		require.NoError(t, err)
		writings = append(writings, writing)
		require.Equal(t, int64(i+1)*one, w.s.Stats().ReservedBytes)
	}
	for i, end := range []func(*Writing){
		func(w *Writing) { w.Abort() }, func(w *Writing) { _ = w.Commit() },
		func(w *Writing) { w.Abort(); _ = w.Commit() }, func(w *Writing) { _ = w.Commit(); w.Abort(); _ = w.Commit() },
	} {
		end(writings[i])
		require.Equal(t, int64(3-i)*one, w.s.Stats().ReservedBytes)
	}
	_, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte("b"), Bytes: 1})
	require.ErrorIs(t, err, ErrConflict)
	require.Zero(t, w.s.Stats().ReservedBytes)
}

// The namespaces that are listed are bounded, and stay the same ones; the others are one entry.
func TestStatsOfManyNamespaces(t *testing.T) {
	w := memory(t)
	for i := range MaxStatsNamespaces + 10 { // the world has one already
		ns, err := w.s.Namespace(digestOf(fmt.Sprint(i)), fmt.Sprintf("%300d", i))
		require.NoError(t, err)
		writing, err := w.s.Allocate(Allocation{NS: ns, Key: []byte("k"), Bytes: int64(i)})
		require.NoError(t, err)
		require.NoError(t, writing.Commit())
		w.s.Acquire(ns, [][]byte{[]byte("none")}, make([]Lease, 1))
	}
	list := w.s.Stats().Namespaces
	require.Len(t, list, MaxStatsNamespaces+1)
	require.Equal(t, "model", list[0].Label)
	require.Len(t, list[1].Label, 256)
	require.EqualValues(t, 1, list[2].Bytes)
	others := list[MaxStatsNamespaces]
	require.Equal(t, NamespaceStats{Label: "others", Blocks: 11, Bytes: 62 + 63 + 64 + 65 + 66 + 67 + 68 + 69 + 70 + 71 + 72, UsedBytes: 11 * 4096, Misses: 11}, others)
}
