package store

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/tag"
)

// steadyPut puts a new block at each call, and makes nothing itself.
func steadyPut(t testing.TB, s *Store, ns NS) func() {
	key, n := make([]byte, 36), uint64(0)
	return func() {
		n++
		binary.LittleEndian.PutUint64(key, n)
		writing, err := s.Allocate(Allocation{NS: ns, Key: key, Bytes: 9000, Tag: tag.Tag{1}})
		if err == nil {
			writing.Buffer()[0] = byte(n)
			err = writing.Commit()
			writing.Release()
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// steadyGet reads one block, and makes nothing itself.
func (w *world) steadyGet(name string) func() {
	keys, leases, p := [][]byte{[]byte(name)}, make([]Lease, 1), make([]byte, 9000)
	return func() {
		if w.s.Acquire(w.ns, keys, leases) != 1 {
			w.t.Error("a miss")
			return
		}
		if err := leases[0].Read(0, p); err != nil {
			w.t.Error(err)
		}
		leases[0].Release()
	}
}

// TestSteadyStateAllocatesNothing: neither a put nor a get, in memory while segments are reclaimed, and in files. What a segment
// costs is for all of its blocks.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector a sync.Pool drops what it is given now and then")
	}
	for name, open := range map[string]func() (medium.Medium, error){
		"memory": func() (medium.Medium, error) { return medium.NewMemory(8 << 20) },
		"files":  func() (medium.Medium, error) { return medium.OpenFiles(t.TempDir(), 64<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := open()
			require.NoError(t, err)
			w := newWorld(t, testenv.Seed(t), m, Config{Durability: FlushNone, FlushEvery: time.Hour})
			put := steadyPut(t, w.s, w.ns)
			for range 2000 { // all segments had their first life
				put()
			}
			require.Zero(t, testing.AllocsPerRun(500, put), "put")
			require.NoError(t, w.put("there", "", make([]byte, 9000)))
			require.Zero(t, testing.AllocsPerRun(500, w.steadyGet("there")), "get")
			require.Equal(t, name == "memory", w.s.Stats().SegmentsReclaimed > 0)
		})
	}
}
