package store

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/record"
)

// TestTailsGoFirst: chains of blocks, some of them used again and again. What is left of a chain is its beginning,
// chains in use are whole, and no more than a segment's worth of room is lost to blocks that no prefix leads to.
func TestTailsGoFirst(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<17, 16)}, Config{})
	chain := func(c int) (keys [][]byte) {
		for i := range 12 {
			keys = append(keys, fmt.Appendf(nil, "chain-%d-%d", c, i))
		}
		return keys
	}
	put := func(keys [][]byte) {
		parent := ""
		for _, key := range keys {
			require.NoError(t, w.put(string(key), parent, payload(string(key), 1, 7000)))
			parent = string(key)
		}
		w.s.Touch(w.ns, keys)
	}
	for c := range 60 {
		put(chain(c))
		for hot := range min(c, 4) {
			w.s.Touch(w.ns, chain(hot))
		}
	}
	found := make([]bool, 12)
	for hot := range 4 {
		require.Equal(t, 12, w.s.Exists(w.ns, chain(hot), found), "chain %d is in use", hot)
	}
	orphans, blocks := 0, 0
	for c := range 60 {
		first := w.s.Exists(w.ns, chain(c), found)
		for _, is := range found[first:] {
			if is {
				orphans++
			}
		}
		blocks += first
	}
	require.LessOrEqual(t, orphans, 12, "of %d blocks", blocks)
	st := w.s.Stats()
	require.Greater(t, float64(st.LiveBytes), 0.6*float64(st.CapacityBytes), "%+v", st)
	w.accounts()
}

// TestPinned: a block that is pinned outlives any number of others, until its time is over.
func TestPinned(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newDisk(1<<16, 8), Config{})
	require.NoError(t, w.put("pinned", "", payload("pinned", 1, 3000)))
	pinned := make([]bool, 2)
	require.Equal(t, 1, w.s.Pin(w.ns, [][]byte{[]byte("pinned"), []byte("absent")}, time.Now().Add(time.Hour), pinned))
	require.Equal(t, []bool{true, false}, pinned)
	w.fill(200)
	require.Equal(t, payload("pinned", 1, 3000), w.get("pinned"))
	w.s.Pin(w.ns, [][]byte{[]byte("pinned")}, time.Now(), pinned)
	w.s.index.Change(w.s.secret.Hash(&w.digest, []byte("pinned")), func(b *index.Block) bool { b.Stamp = 0; return true })
	w.fill(200)
	require.False(t, w.has("pinned"))
}

func (w *world) fill(n int) {
	for range n {
		key := fmt.Sprint("other", w.rng.Uint64())
		require.NoError(w.t, w.put(key, "", payload(key, 1, 5000)))
	}
}

// TestPinnedMeanwhile: a block that is pinned while its segment is being emptied stays, though it was to be evicted; one that
// cannot be read does not hold the segment up.
func TestPinnedMeanwhile(t *testing.T) {
	for _, readable := range []bool{true, false} {
		d := newDisk(1<<16, 8)
		w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
		require.NoError(t, w.put("late", "", payload("late", 1, 3000)))
		var once sync.Once
		d.calls(func(op string) {
			if op == "sync" && reclaims() { // what is hot was moved, and the others are evicted next
				once.Do(func() {
					require.Equal(t, 1, w.s.Pin(w.ns, [][]byte{[]byte("late")}, time.Now().Add(time.Hour), make([]bool, 1)))
					d.mu.Lock()
					d.bad[[2]int64{0, 1}] = !readable
					d.mu.Unlock()
				})
			}
		})
		w.fill(200)
		require.Equal(t, readable, w.has("late"))
		if readable {
			require.Equal(t, payload("late", 1, 3000), w.get("late"))
		}
		w.accounts()
	}
}

// TestPinsEndWithTheirBlock: a block that is deleted or damaged leaves no pin, of which there are only so many, to the next one of
// its key.
func TestPinsEndWithTheirBlock(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 8)}, Config{})
	key := [][]byte{[]byte("key")}
	for i, end := range []func(){
		func() { require.True(t, w.delete("key")) },
		func() {
			leases := make([]Lease, 1)
			require.Equal(t, 1, w.s.Acquire(w.ns, key, leases))
			leases[0].Bad()
			leases[0].Release()
		},
	} {
		require.NoError(t, w.put("key", "", payload("key", i, 100)))
		require.Equal(t, 1, w.s.Pin(w.ns, key, time.Now().Add(time.Hour), make([]bool, 1)))
		end()
		require.Empty(t, w.s.pins.all)
	}
	require.NoError(t, w.put("key", "", payload("key", 3, 100)))
	w.fill(300)
	require.False(t, w.has("key"))
}

// TestLeased: a leased block stays readable where it is, though it is evicted and everything else is written anew.
func TestLeased(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 8)}, Config{})
	want := payload("leased", 1, 5000)
	require.NoError(t, w.put("leased", "", want))
	leases := make([]Lease, 1)
	require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte("leased")}, leases))
	data := leases[0].Data()
	require.True(t, w.delete("leased"))
	w.fill(300)
	require.Equal(t, want, append([]byte{}, data...))
	leases[0].Release()
	leases[0].Release()
	w.fill(100)
	for i := range w.s.segments {
		require.Zero(t, w.s.segments[i].refs.Load())
	}
}

// TestEverythingLeased: without a segment that may be reclaimed a put is refused, and works once one is released.
func TestEverythingLeased(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 5)}, Config{})
	var leases []*Lease
	refused := 0
	for i := range 200 {
		key := fmt.Sprint("k", i)
		if err := w.put(key, "", payload(key, 1, 5000)); err != nil {
			require.ErrorIs(t, err, ErrFull)
			refused++
			continue
		}
		l := make([]Lease, 1)
		require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte(key)}, l))
		leases = append(leases, &l[0])
	}
	require.NotZero(t, refused)
	for _, l := range leases {
		l.Release()
	}
	w.fill(50)
}

// TestOldestOfAFullSegmentGo: where the segments with dead bytes cannot be had, what goes of another one is not what lies last.
func TestOldestOfAFullSegmentGo(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 8)}, Config{})
	bySegment := make([][]string, 8)
	for i := 0; w.free() > 2; i++ {
		key := fmt.Sprint(i)
		require.NoError(t, w.put(key, "", payload(key, 1, 3000)))
		b, _ := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte(key)))
		bySegment[b.Segment] = append(bySegment[b.Segment], key)
	}
	leases := make([]Lease, 3)
	for segment := range leases {
		for _, key := range bySegment[segment][1:] {
			w.delete(key)
		}
		require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte(bySegment[segment][0])}, leases[segment:segment+1]))
		defer leases[segment].Release()
	}
	w.s.mu.Lock()
	require.True(t, w.s.reclaim())
	w.s.mu.Unlock()
	require.NotZero(t, w.s.Stats().EvictedCold)
	oldest := bySegment[3]
	require.Greater(t, len(oldest), 12)
	for i, key := range oldest {
		require.Equal(t, i >= int(w.s.Stats().EvictedCold), w.has(key), "%d of %d", i, len(oldest))
	}
}

// TestHotSince compares with a sort.
func TestHotSince(t *testing.T) {
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 0))
	for range 100 {
		blocks := make([]index.Block, rng.IntN(300))
		total := int64(0)
		for i := range blocks {
			blocks[i] = index.Block{Stamp: rng.Uint64N(1 << rng.IntN(40)), PayloadBytes: uint32(rng.IntN(9000)), KeyBytes: 5}
			total += blocks[i].RecordBytes()
		}
		each := func(f func(*index.Block)) {
			for i := range blocks {
				f(&blocks[i])
			}
		}
		limit := rng.Int64N(total + 1)
		since := LRU{}.HotSince(each, limit)
		kept, low, high := int64(0), ^uint64(0), uint64(0)
		for _, b := range blocks {
			low, high = min(low, b.Stamp), max(high, b.Stamp)
			if b.Stamp >= since {
				kept += b.RecordBytes()
			}
		}
		require.LessOrEqual(t, kept, limit)
		width := uint64(0)
		if len(blocks) > 0 {
			width = (widthOf(low, high)-1)/numBuckets + 1
		}
		next := kept // with one more bucket it is too much
		for _, b := range blocks {
			if b.Stamp < since && b.Stamp+width >= since {
				next += b.RecordBytes()
			}
		}
		require.True(t, since == 0 || next > limit, "since %d keeps %d of %d", since, kept, limit)
	}
}

// TestAllPinned: a store with all blocks pinned refuses a put, in bounded time, and takes one once the pins are over.
func TestAllPinned(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 6)}, Config{})
	pinned, refused := make([]bool, 1), 0
	for i := range 60 {
		key := fmt.Sprint("k", i)
		if err := w.put(key, "", payload(key, 1, 5000)); err != nil {
			require.ErrorIs(t, err, ErrFull)
			refused++
			continue
		}
		w.s.Pin(w.ns, [][]byte{[]byte(key)}, time.Now().Add(time.Hour), pinned)
	}
	require.NotZero(t, refused)
	for i := range 60 {
		w.s.Pin(w.ns, [][]byte{fmt.Appendf(nil, "k%d", i)}, time.Now(), pinned)
	}
	w.fill(20)
}

// TestFullDiskKeepsThePinned: where nothing can be moved, nothing that is pinned is evicted to make room.
func TestFullDiskKeepsThePinned(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone})
	pinned := make([]bool, 1)
	for i := range 12 {
		key := fmt.Sprint("pinned", i)
		require.NoError(t, w.put(key, "", payload(key, 1, 5000)))
		require.Equal(t, 1, w.s.Pin(w.ns, [][]byte{[]byte(key)}, time.Now().Add(time.Hour), pinned))
	}
	require.NoError(t, w.s.sealAllOpen())
	d.fails(func(op string) (float64, error) {
		if op == "write" {
			return 0, errDisk
		}
		return 1, nil
	})
	for i := range 10 {
		require.ErrorIs(t, w.put(fmt.Sprint("refused", i), "", payload("x", 1, 5000)), ErrFull)
	}
	d.fails(nil)
	for i := range 12 {
		key := fmt.Sprint("pinned", i)
		require.Equal(t, payload(key, 1, 5000), w.get(key))
	}
}

// TestMovesFail: where a block that is pinned cannot be moved, its segment stays as it is.
func TestMovesFail(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("pinned", "", payload("pinned", 1, 5000)))
	pinned := make([]bool, 1)
	require.Equal(t, 1, w.s.Pin(w.ns, [][]byte{[]byte("pinned")}, time.Now().Add(time.Hour), pinned))
	moves := 0
	d.fails(func(op string) (float64, error) {
		if op == "write" && strings.Contains(string(debug.Stack()), "copyRecord") {
			moves++
			return 0.5, errDisk
		}
		return 1, nil
	})
	for i := range 150 {
		_ = w.put(fmt.Sprint("other", i), "", payload("x", 1, 5000))
	}
	require.NotZero(t, moves)
	require.Equal(t, payload("pinned", 1, 5000), w.get("pinned"))
	d.fails(nil)
	w.fill(50)
	require.Equal(t, payload("pinned", 1, 5000), w.get("pinned"))
}

// TestDeletedOfSealed: a block that was deleted in a segment with a footer does not exist in the next life.
func TestDeletedOfSealed(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	for _, key := range []string{"a", "b", "c"} {
		require.NoError(t, w.put(key, "", payload(key, 1, 100)))
	}
	require.NoError(t, w.s.sealAllOpen())
	require.True(t, w.delete("b"))
	image := d.killed()
	w.s.stop()
	w.open(image)
	require.Equal(t, []bool{true, false, true}, []bool{w.has("a"), w.has("b"), w.has("c")})
	require.Equal(t, 2, w.s.index.Len())
}

// TestTornPayload: a block with a torn payload, in a segment without a footer, is no block in the next life, nor later.
func TestTornPayload(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("a", "", payload("a", 1, 3000)))
	require.NoError(t, w.put("b", "", payload("b", 1, 3000)))
	image := d.killed()
	image.data[0][record.PageBytes+1000] ^= 1
	w.s.stop()
	for range 2 {
		w.open(image)
		require.Equal(t, []bool{false, true}, []bool{w.has("a"), w.has("b")})
		image.data[0][record.PageBytes+1000] ^= 1
		image = image.killed()
		w.s.stop()
	}
	w.open(image)
}

// TestLaterRecordCounts: of two records of a key, as a kill leaves them while a segment is being emptied, the next life has the
// one that was written later; once that is deleted there is none.
func TestLaterRecordCounts(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		d := newDisk(1<<16, 8)
		w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
		for version := range 3 {
			require.NoError(t, w.put("a", "", payload("a", version, 100)))
			if sealed {
				require.NoError(t, w.s.sealAllOpen())
			}
			if version < 2 {
				w.s.drop(w.s.secret.Hash(&w.digest, []byte("a")), anyBlock)
			}
		}
		image := d.killed()
		w.s.stop()
		w.open(image)
		require.Equal(t, payload("a", 2, 100), w.get("a"))
		require.True(t, w.delete("a"))
		image = image.killed()
		w.s.stop()
		w.open(image)
		require.False(t, w.has("a"))
	}
}
