package store

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/medium"
)

// folder is a store in files that is started with one capacity after the other.
type folder struct {
	*world
	path  string
	lines lines
}

func newFolder(t *testing.T, capacityBytes int64) *folder {
	f := &folder{path: t.TempDir()}
	m, err := medium.OpenFiles(f.path, capacityBytes)
	require.NoError(t, err)
	f.world = newWorld(t, testenv.Seed(t), m, Config{
		Secret: m.Secret(), Durability: FlushNone, Log: f.lines.add,
	})
	return f
}

// again closes the store and starts it with another capacity.
func (f *folder) again(capacityBytes int64) {
	require.NoError(f.t, f.s.Close())
	f.lines.forget()
	m, err := medium.OpenFiles(f.path, capacityBytes)
	require.NoError(f.t, err)
	f.config.Secret = m.Secret()
	f.open(m)
}

func (f *folder) said(part string) int {
	return strings.Count(strings.Join(f.lines.said(), "\n"), part)
}

func (f *folder) diskBytes() int64 {
	var st syscall.Stat_t
	require.NoError(f.t, syscall.Stat(f.path+"/blocks", &st))
	return st.Blocks * 512 &^ 0xffff // without what the file system notes of a file
}

// numGone counts the segments that are set aside.
func (f *folder) numGone() (n int) {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	for i := range f.s.segments {
		if f.s.segments[i].state == stateGone {
			n++
		}
	}
	return n
}

const (
	blocksOfFolder = 120
	blockOfFolder  = 100_000
)

// fillFolder puts blocks, of which the second half are stamped below the first one: they are the oldest, and lie last.
func (f *folder) fillFolder() {
	parent := "key0"
	for i := range blocksOfFolder {
		key := fmt.Sprint("key", i)
		if i < blocksOfFolder/2 {
			require.NoError(f.t, f.put(key, "", payload(key, 1, blockOfFolder)))
			continue
		}
		require.NoError(f.t, f.put(key, parent, payload(key, 1, blockOfFolder)))
		parent = key
	}
}

// there is which blocks are there, all of them right.
func (f *folder) there() (list []int) {
	for i := range blocksOfFolder {
		key := fmt.Sprint("key", i)
		if data := f.get(key); data != nil {
			require.Equal(f.t, payload(key, 1, blockOfFolder), data)
			list = append(list, i)
		}
	}
	return list
}

// TestSmallerCapacity: a start with a smaller capacity evicts what was not used for longest, wherever it lies, counts it, says so
// once and gives the disk back. The next start has nothing to do, and one with more room takes it.
func TestSmallerCapacity(t *testing.T) {
	f := newFolder(t, 16<<20) // segments of 1 MiB
	f.fillFolder()
	f.again(8 << 20)
	st := f.s.Stats()
	require.EqualValues(t, 8<<20, st.CapacityBytes)
	require.LessOrEqual(t, st.LiveBytes, st.CapacityBytes)
	require.EqualValues(t, blocksOfFolder, uint64(st.NumBlocks)+st.EvictedCold+st.EvictedOrphans)
	require.Positive(t, st.EvictedCold)
	require.Equal(t, 1, f.said("the capacity is smaller than it was: "))
	require.Len(t, f.lines.said(), 2, f.lines.said())
	require.LessOrEqual(t, f.diskBytes(), int64(8<<20))
	f.accounts()
	stayed := f.there()
	require.Len(t, stayed, st.NumBlocks)
	require.GreaterOrEqual(t, len(stayed), 60)
	for i := range blocksOfFolder / 2 {
		require.Contains(t, stayed, i)
	}

	f.again(8 << 20)
	require.Zero(t, f.said("the capacity is"))
	require.Zero(t, f.s.Stats().EvictedCold)
	require.Equal(t, stayed, f.there())

	f.again(32 << 20)
	require.EqualValues(t, 32<<20, f.s.Stats().CapacityBytes)
	before := f.s.Stats().NumBlocks
	for i := range 150 {
		key := fmt.Sprint("room", i)
		require.NoError(t, f.put(key, "", payload(key, 1, blockOfFolder)))
	}
	require.Equal(t, before+150, f.s.Stats().NumBlocks)
	f.accounts()
}

// TestSmallerCapacityAfterAKill: the segments had no footers.
func TestSmallerCapacityAfterAKill(t *testing.T) {
	f := newFolder(t, 16<<20)
	f.fillFolder()
	f.s.stop()
	require.NoError(t, f.s.medium.Close())
	m, err := medium.OpenFiles(f.path, 4<<20)
	require.NoError(t, err)
	f.lines.forget()
	f.open(m)
	st := f.s.Stats()
	require.EqualValues(t, blocksOfFolder, uint64(st.NumBlocks)+st.EvictedCold+st.EvictedOrphans)
	require.GreaterOrEqual(t, len(f.there()), 20)
	require.LessOrEqual(t, f.diskBytes(), int64(4<<20))
	for i := range 100 {
		key := fmt.Sprint("more", i)
		require.NoError(t, f.put(key, "", payload(key, 1, blockOfFolder)))
	}
	require.LessOrEqual(t, f.diskBytes(), int64(4<<20))
	f.accounts()
}

// TestSmallerCapacityOnABrokenDisk: what cannot be evicted for good stays, a line says so, and the next start goes on.
func TestSmallerCapacityOnABrokenDisk(t *testing.T) {
	f := newFolder(t, 16<<20)
	f.fillFolder()
	mends := sys.FailCall("pwrite", syscall.EIO)
	defer mends()
	_ = f.s.Close()
	m, err := medium.OpenFiles(f.path, 8<<20)
	require.NoError(t, err)
	f.lines.forget()
	f.open(m)
	require.Equal(t, 1, f.said("the capacity is not reached: "), f.lines.said())
	require.Len(t, f.there(), blocksOfFolder)
	mends()
	f.again(8 << 20)
	require.Zero(t, f.said("not reached"))
	require.EqualValues(t, 8<<20, f.s.Stats().CapacityBytes)
	require.LessOrEqual(t, f.diskBytes(), int64(8<<20))
}

// TestSmallerCapacityOnABadSegment: a segment that cannot be written to keeps its blocks, and others go in its place. All that go share
// a flush: a store of many segments starts as soon as one of few.
func TestSmallerCapacityOnABadSegment(t *testing.T) {
	f := newFolder(t, 16<<20)
	f.fillFolder()
	writes, flushes := 0, 0
	require.NoError(t, f.s.Close())
	stop := sys.InjectFaults(func(call string) error {
		switch call {
		case "pwrite":
			if writes++; writes == 2 { // of the segment that is to go second
				return syscall.EIO
			}
		case "fdatasync":
			flushes++
		}
		return nil
	})
	defer stop()
	m, err := medium.OpenFiles(f.path, 8<<20)
	require.NoError(t, err)
	f.open(m)
	stop()
	require.Equal(t, 1, f.said("keeps its blocks"))
	require.Zero(t, f.said("not reached"))
	require.LessOrEqual(t, f.diskBytes(), int64(8<<20))
	require.Equal(t, blocksOfFolder, len(f.there())+int(f.s.Stats().EvictedCold+f.s.Stats().EvictedOrphans))
	require.LessOrEqual(t, flushes, 2)
	f.accounts()
}

// TestSmallerCapacityAndAFlushThatFails: one flush is for many segments, so it counts as one failure. All of them keep their blocks.
func TestSmallerCapacityAndAFlushThatFails(t *testing.T) {
	f := newFolder(t, 16<<20)
	f.fillFolder()
	require.NoError(t, f.s.Close())
	f.lines.forget()
	mends := sys.FailCall("fdatasync", syscall.EIO)
	defer mends()
	m, err := medium.OpenFiles(f.path, 8<<20)
	require.NoError(t, err)
	f.open(m)
	require.EqualValues(t, 1, f.s.Stats().WriteErrors)
	require.Equal(t, 1, f.said("keeps its blocks"))
	require.Equal(t, 1, f.said("not reached"))
	mends()
	require.Len(t, f.there(), blocksOfFolder)
	f.accounts()
}

// TestSmallerCapacityThatStaysOnTheDisk: where the room is not taken back a line says so, the store goes on, and the next start gives it
// back. A file system that has no holes is no error.
func TestSmallerCapacityThatStaysOnTheDisk(t *testing.T) {
	for _, c := range []struct {
		call string
		err  error
		said int
	}{
		{"fallocate punch", syscall.EIO, 1},
		{"ftruncate", syscall.EIO, 1},
		{"fallocate punch", syscall.EOPNOTSUPP, 0},
	} {
		t.Run(c.call+" "+c.err.Error(), func(t *testing.T) {
			f := newFolder(t, 16<<20)
			f.fillFolder()
			for i := range blocksOfFolder / 4 { // the segments in front have nothing, and become holes
				require.True(t, f.delete(fmt.Sprint("key", i)))
			}
			mends := sys.FailCall(c.call, c.err)
			defer mends()
			f.again(8 << 20)
			mends()
			require.Equal(t, c.said, f.said(c.call+": "+c.err.Error()), f.lines.said())
			require.Zero(t, f.said("not reached"))
			require.Greater(t, f.diskBytes(), int64(8<<20))
			stayed := f.there()
			require.GreaterOrEqual(t, len(stayed), 50)
			f.again(8 << 20)
			require.LessOrEqual(t, f.diskBytes(), int64(8<<20))
			require.Equal(t, stayed, f.there())
			f.accounts()
		})
	}
}

// TestSmallerCapacityAndAFailedFlush: a flush that fails after the start costs what it may have lost, and nothing else: what is set
// aside stays that, and room is made again.
func TestSmallerCapacityAndAFailedFlush(t *testing.T) {
	f := newFolder(t, 16<<20)
	f.fillFolder()
	f.again(8 << 20)
	stayed, aside := f.there(), f.numGone()
	require.Positive(t, aside)
	mends := sys.FailCall("fdatasync", syscall.EIO)
	defer mends()
	require.Error(t, f.flush())
	mends()
	f.flushSoon()
	require.Equal(t, stayed, f.there())
	for i := range 150 {
		key := fmt.Sprint("more", i)
		require.NoError(t, f.put(key, "", payload(key, 1, blockOfFolder)))
	}
	f.flushSoon()
	require.Equal(t, aside, f.numGone())
	require.LessOrEqual(t, f.diskBytes(), int64(8<<20))
	f.accounts()
}

// TestManySegments: what a put takes does not grow with the number of segments.
func TestManySegments(t *testing.T) {
	f := newFolder(t, 16<<20)
	perPut := func(name string) time.Duration {
		best := time.Hour
		for turn := range 10 {
			began := time.Now()
			for i := range 50 {
				require.NoError(t, f.put(fmt.Sprint(name, turn, "/", i), "", []byte(name)))
			}
			best = min(best, time.Since(began)/50)
		}
		return best
	}
	few := perPut("few")
	f.again(medium.MaxSegments << 20)
	many := perPut("many")
	require.Less(t, many, 10*few, "with %d segments, beside 16", medium.MaxSegments)
}

// TestCapacityBelowFourSegments: the store begins anew, and says so once.
func TestCapacityBelowFourSegments(t *testing.T) {
	f := newFolder(t, 256<<20) // segments of 4 MiB
	require.NoError(t, f.put("key", "", payload("key", 1, 100)))
	f.again(8 << 20)
	require.Equal(t, 1, f.said("it begins anew"))
	require.False(t, f.has("key"))
	require.NoError(t, f.put("key", "", payload("key", 2, 100)))
	f.again(8 << 20)
	require.Empty(t, f.said("it begins anew"))
	require.True(t, f.has("key"))
}
