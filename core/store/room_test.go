package store

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// lines are what a store logs. What takes a line may ask the store.
type lines struct {
	mu    sync.Mutex
	all   []string
	store *Store
}

func (l *lines) add(line string) {
	if l.store != nil {
		l.store.Stats()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, line)
}

func (l *lines) num() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

// said is a copy of them.
func (l *lines) said() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *lines) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

// newSmaller is a store on a disk with room for a part of it.
func newSmaller(t *testing.T, numSegments, room int) (*world, *disk, *lines) {
	d, said := newDisk(1<<16, numSegments), &lines{}
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour, Log: said.add})
	said.store = w.s
	d.hasRoom(room)
	return w, d, said
}

// TestSmallerDisk: on a disk that is smaller than the store no put is refused, what is pinned stays, and one line says so. Once
// there is room it is used.
func TestSmallerDisk(t *testing.T) {
	for _, c := range []struct{ numSegments, room int }{{12, 1}, {12, 2}, {12, 5}, {aheadSegments + 8, 5}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			w, d, said := newSmaller(t, c.numSegments, c.room)
			if c.room > 2 {
				require.NoError(t, w.put("pinned", "", payload("pinned", 1, 3000)))
				w.s.Pin(w.ns, [][]byte{[]byte("pinned")}, time.Now().Add(time.Hour), make([]bool, 1))
			}
			for range 40 { // each of which meets the full disk again
				w.fill(20)
				w.retrySoon()
			}
			require.Equal(t, int64(c.numSegments-c.room)<<16, w.s.Stats().NoRoomBytes)
			require.Equal(t, 1, said.num(), said.said())
			require.Equal(t, c.room > 2, w.has("pinned"))
			if c.numSegments < aheadSegments { // else one may be reclaimed now
				w.accounts()
			}
			d.hasRoom(0)
			w.retrySoon()
			before, evicted := w.keys(), w.s.Stats().EvictedCold
			w.fill((c.numSegments - c.room - 2) * 6) // six to a segment
			if c.numSegments < aheadSegments {
				require.Equal(t, evicted, w.s.Stats().EvictedCold)
				for _, key := range before {
					require.True(t, w.has(key))
				}
			}
			w.fill(5 * c.numSegments * 6)
			require.Zero(t, w.s.Stats().NoRoomBytes)
		})
	}
}

// TestFullDiskWithABrokenSegment: on a full disk one segment that cannot be written to, used or not, refuses no put: the next one is
// evicted as a whole. One line says so.
func TestFullDiskWithABrokenSegment(t *testing.T) {
	for name, broken := range map[string]int{"not used": 8, "used": 2} {
		t.Run(name, func(t *testing.T) {
			w, d, said := newSmaller(t, 12, 5)
			w.fill(20)
			require.NoError(t, w.s.sealAllOpen())
			d.laming(broken)
			errs := w.s.Stats().WriteErrors
			for range 20 {
				w.fill(20)
				w.retrySoon()
			}
			require.NotZero(t, w.s.Stats().EvictedCold)
			require.Greater(t, w.s.Stats().WriteErrors, errs+1)
			require.Equal(t, 2, said.num(), "that the disk is full, and that a segment fails: %q", said.said())
			w.accounts()
			d.laming()
			w.retrySoon()
			w.fill(200)
			w.accounts()
		})
	}
}

// TestFailuresAreSaidOnce: a disk that goes on to fail, in two ways at each flush, makes a line for each of them.
func TestFailuresAreSaidOnce(t *testing.T) {
	d, said := newDisk(1<<16, 8), &lines{}
	w := newWorld(t, testenv.Seed(t), d, Config{FlushEvery: time.Hour, Log: said.add})
	require.NoError(t, w.put("key", "", nil))
	d.laming(0)
	require.True(t, w.delete("key"))
	for range 10 {
		w.s.tend()
	}
	require.Equal(t, 2, said.num(), said.said())
	require.GreaterOrEqual(t, w.s.Stats().WriteErrors, uint64(20))
	d.laming()
}

// TestAmountsMakeNoNewLine: what a full disk has free changes all the time, and is no other failure.
func TestAmountsMakeNoNewLine(t *testing.T) {
	var n noted
	full := "segment %d: pwrite: no space left on device, %d of 900 bytes and %d of 30 files of its file system are free"
	require.True(t, n.isNew(fmt.Sprintf(full, 1, 700, 3)))
	require.False(t, n.isNew(fmt.Sprintf(full, 1, 0, 4)))
	require.True(t, n.isNew(fmt.Sprintf(full, 2, 0, 4)))
}

// TestBrokenIsNotFull: while a segment cannot be written to for another reason than a want of room, and none lacks room, nothing is
// evicted that is to stay.
func TestBrokenIsNotFull(t *testing.T) {
	w, d, _ := newSmaller(t, 12, 5)
	w.fill(28)
	before := w.keys()
	require.NotEmpty(t, before)
	d.laming(5, 6, 7, 8, 9, 10, 11)
	refused := 0
	for i := range 40 {
		if w.put(fmt.Sprint("more", i), "", payload("more", 1, 5000)) != nil {
			refused++
		}
	}
	require.NotZero(t, refused)
	require.Zero(t, w.s.Stats().EvictedCold)
	for _, key := range before {
		require.True(t, w.has(key))
	}
}

// TestOpenIsNotLost: while a put waits for what is being reclaimed, segments that are due for room do not take the place of the
// one that is open: it would never be sealed.
func TestOpenIsNotLost(t *testing.T) {
	w, d, _ := newSmaller(t, 12, 5)
	w.fill(100) // which meets the full disk
	d.hasRoom(0)
	w.retrySoon()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for w.s.numFree() > 0 {
		w.s.retire()
		w.s.tryStart(w.s.freeSegment())
	}
	require.NotEqual(t, none, w.s.dueForRoom())
	w.s.reclaiming = true
	require.ErrorIs(t, w.s.begin(forPut, &roomBudget{time.Now().Add(20 * time.Millisecond), 0}), ErrFull)
	w.s.reclaiming = false
	var open []int
	for i := range w.s.segments {
		if w.s.segments[i].state == stateOpen {
			open = append(open, i)
		}
	}
	require.Equal(t, []int{w.s.open}, open)
	require.NotEqual(t, none, w.s.dueForRoom())
}

// TestColdestGoesAsAWhole: without room to move blocks to, the segment goes that has the fewest hot bytes.
func TestColdestGoesAsAWhole(t *testing.T) {
	w, _, _ := newSmaller(t, 12, 3)
	bySegment := map[uint16][]string{}
	for w.free() > 9 { // the fourth one has no room
		key := fmt.Sprint("key", len(bySegment), w.rng.Uint64())
		require.NoError(t, w.put(key, "", payload(key, 1, 5000)))
		b, _ := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte(key)))
		bySegment[b.Segment] = append(bySegment[b.Segment], key)
	}
	require.Len(t, bySegment, 3)
	for _, at := range []uint16{0, 2} {
		for _, key := range bySegment[at] {
			require.NotNil(t, w.get(key))
		}
	}
	w.fill(6) // fills the open segment, and takes room for one more
	for at, most := range map[uint16]int{0: 2, 1: 6} {
		gone := 0
		for _, key := range bySegment[at] {
			if !w.has(key) {
				gone++
			}
		}
		require.Equal(t, most, gone, "segment %d", at) // of the other one, which is reclaimed next, what is not hot
	}
}
