package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/record"
)

// TestMemoryIsUsedAgain: blocks that are put together in the same memory have their own bytes, and nothing of those before is
// behind them on the disk.
func TestMemoryIsUsedAgain(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	var last *Writing
	for i, n := range []int{3900, 100, 3000, 0} {
		key := fmt.Sprint("key", i)
		data := payload(key, 1, n)
		writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte(key), Bytes: int64(n), Tag: w.tagOf(key, data)})
		require.NoError(t, err)
		require.True(t, last == nil || last == writing)
		require.Len(t, writing.Buffer(), n)
		copy(writing.Buffer(), data)
		require.NoError(t, writing.Commit())
		writing.Release()
		last = writing
		b, found := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte(key)))
		require.True(t, found)
		off := int(b.Off) * record.PageBytes
		require.Equal(t, make([]byte, record.PageBytes-int(record.PayloadOff(len(key)))-n),
			d.data[b.Segment][off+int(record.PayloadOff(len(key)))+n:off+record.PageBytes])
	}
	for i, n := range []int{3900, 100, 3000} {
		require.Equal(t, payload(fmt.Sprint("key", i), 1, n), w.get(fmt.Sprint("key", i)))
	}
	require.Zero(t, w.s.staged)
}

// TestKeptMemoryIsBounded: of what many calls at once have used, a part is kept.
func TestKeptMemoryIsBounded(t *testing.T) {
	var all stagings
	var lent []*staging
	for range 40 {
		lent = append(lent, all.get(1<<20))
	}
	for _, st := range lent {
		all.put(st)
	}
	require.Equal(t, keptStagingBytes, all.bytes)
	all.get(1 << 20)
	require.Equal(t, keptStagingBytes-1<<20, all.bytes)
}

// TestStagingSizes: memory for a record is as long as that, a quarter longer at most, and found again by its own length.
func TestStagingSizes(t *testing.T) {
	last := 0
	for n := int64(1); n < 1<<40; n += n/17 + 1 {
		bytes, number := stagingSize(n)
		require.GreaterOrEqual(t, bytes, n)
		require.LessOrEqual(t, bytes, max(n+n/4, minStagingBytes))
		require.GreaterOrEqual(t, number, last)
		last = number
		again, same := stagingSize(bytes)
		require.Equal(t, []int64{bytes, int64(number)}, []int64{again, int64(same)})
	}
}

// TestStagedIsMemory: what is being written is counted as the memory that it takes.
func TestStagedIsMemory(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newDisk(1<<20, 8), Config{Durability: FlushNone, FlushEvery: time.Hour})
	lent := 0
	var all []*Writing
	for i, n := range []int64{0, 1, 1 << 16, 1<<16 - 200, 1 << 18, w.s.MaxBlockBytes(1)} {
		writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte{byte(i)}, Bytes: n})
		require.NoError(t, err)
		all = append(all, writing)
		lent += len(writing.staged.record)
		require.EqualValues(t, lent, w.s.staged)
	}
	for _, writing := range all {
		writing.Abort()
	}
	require.Zero(t, w.s.staged)
}

// The longest block of a segment has room, however long segments are and however little may be written at a time.
func TestLongestIsStaged(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newDisk(9<<16, 8), Config{StagedBytes: 1})
	writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte("key"), Bytes: w.s.MaxBlockBytes(3)})
	require.NoError(t, err)
	writing.Abort()
}

// TestPutsOverUnreadablePages: a put covers whole pages, so that none of them is read.
func TestPutsOverUnreadablePages(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	for segment := range int64(8) {
		for page := range d.segmentBytes / record.PageBytes {
			d.bad[[2]int64{segment, page}] = true
		}
	}
	require.NoError(t, w.put("hot", "", payload("hot", 1, 3000)))
	for range 20 {
		w.fill(5)
		require.NotNil(t, w.get("hot"))
	}
	require.NotZero(t, w.s.Stats().MovedBytes)
	require.Zero(t, w.s.Stats().ReadErrors)
}
