package store

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/index"
)

// nowhere is a medium that keeps nothing of what is written.
type nowhere struct{ segments int }

func (n nowhere) SegmentBytes() int64               { return 1 << 20 }
func (n nowhere) NumSegments() int                  { return n.segments }
func (n nowhere) Lasts() bool                       { return true }
func (n nowhere) Bytes(int, int64, int64) []byte    { return nil }
func (n nowhere) Write(int, int64, ...[]byte) error { return nil }
func (n nowhere) Read(int, int64, []byte) error     { return io.ErrUnexpectedEOF }
func (n nowhere) Sync(int) error                    { return nil }
func (n nowhere) Close() error                      { return nil }

func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // what pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestBytesPerBlock: all that a store keeps of a block in memory is at most 100 bytes, by what the heap has grown, however long
// the keys are.
func TestBytesPerBlock(t *testing.T) {
	num := 100_000
	if testing.Short() {
		num = 25_000
	}
	for _, keyBytes := range []int{8, 36, 512} {
		t.Run(fmt.Sprint(keyBytes), func(t *testing.T) {
			w := newWorld(t, testenv.Seed(t), nowhere{num/200 + 8}, Config{Durability: FlushNone, FlushEvery: time.Hour})
			pad := strings.Repeat("k", keyBytes-8)
			require.NoError(t, w.put("first", "", nil))
			before := heapBytes()
			for i := 1; i <= num; i++ {
				require.NoError(t, w.put(fmt.Sprintf("%08d%s", i, pad), "", nil))
				if i < num/4 || i%(num/10) != 0 {
					continue
				}
				require.NoError(t, w.s.sealAll())
				grown, st := heapBytes()-before, w.s.Stats()
				require.Equal(t, i+1, st.NumBlocks)
				require.LessOrEqual(t, grown, int64(i)*index.MaxBytesPerBlock, "%d blocks", i)
				require.LessOrEqual(t, st.IndexBytes, grown+1<<16, "the heap was not measured")
			}
		})
	}
}
