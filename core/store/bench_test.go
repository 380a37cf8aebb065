package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/tag"
)

// filled is a store in files with so many blocks, closed.
func filled(b *testing.B, path string, numBlocks, blockBytes int) {
	s := openFiles(b, path, int64(numBlocks)*int64(blockBytes+8192)*5/4)
	ns, err := s.Namespace(digestOf("bench"), "bench")
	require.NoError(b, err)
	for i := range numBlocks {
		w, err := s.Allocate(Allocation{NS: ns, Key: fmt.Appendf(nil, "%036d", i), Bytes: int64(blockBytes), Tag: tag.Tag{1}})
		require.NoError(b, err)
		require.NoError(b, w.Commit())
	}
	require.NoError(b, s.Close())
}

func openFiles(b *testing.B, path string, capacityBytes int64) *Store {
	f, err := medium.OpenFiles(path, max(capacityBytes, 64<<20))
	require.NoError(b, err)
	s, err := Open(Config{Medium: f, Secret: f.Secret()})
	require.NoError(b, err)
	return s
}

// BenchmarkWarmStart is the time in which a store that was closed has all its blocks again.
func BenchmarkWarmStart(b *testing.B) {
	const numBlocks = 10_000
	path := b.TempDir()
	filled(b, path, numBlocks, 4096)
	for b.Loop() {
		s := openFiles(b, path, numBlocks*(4096+8192)*5/4)
		require.Equal(b, numBlocks, s.index.Len())
		b.StopTimer()
		require.NoError(b, s.Close())
		b.StartTimer()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/numBlocks, "ns/block")
}

// BenchmarkExists asks for 512 keys of 36 bytes at a time.
func BenchmarkExists(b *testing.B) {
	m, err := medium.NewMemory(64 << 20)
	require.NoError(b, err)
	s, err := Open(Config{Medium: m, FlushEvery: time.Hour})
	require.NoError(b, err)
	defer s.Close()
	ns, err := s.Namespace(digestOf("bench"), "bench")
	require.NoError(b, err)
	keys := make([][]byte, 512)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "%036d", i)
		w, err := s.Allocate(Allocation{NS: ns, Key: keys[i], Bytes: 100})
		require.NoError(b, err)
		require.NoError(b, w.Commit())
	}
	found := make([]bool, len(keys))
	b.ReportAllocs()
	for b.Loop() {
		s.Exists(ns, keys, found)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(len(keys)), "ns/key")
}

// BenchmarkPut puts blocks of 9000 bytes while segments are reclaimed.
func BenchmarkPut(b *testing.B) {
	for name, open := range map[string]func() (medium.Medium, error){
		"memory": func() (medium.Medium, error) { return medium.NewMemory(8 << 20) },
		"files":  func() (medium.Medium, error) { return medium.OpenFiles(b.TempDir(), 8<<20) },
	} {
		b.Run(name, func(b *testing.B) {
			m, err := open()
			require.NoError(b, err)
			s, err := Open(Config{Medium: m, Durability: FlushNone, FlushEvery: time.Hour})
			require.NoError(b, err)
			defer s.Close()
			ns, err := s.Namespace(digestOf("bench"), "bench")
			require.NoError(b, err)
			put := steadyPut(b, s, ns)
			b.ReportAllocs()
			for b.Loop() {
				put()
			}
		})
	}
}
