package store

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/record"
)

// unreadable is a world with a page of its disk that cannot be read.
type unreadable struct {
	*world
	lines  []string
	blocks map[string]int // the segment of each
}

func newUnreadable(t *testing.T, sealed bool) (*unreadable, *disk) {
	d := newDisk(1<<16, 8)
	u := &unreadable{blocks: map[string]int{}}
	u.world = newWorld(t, testenv.Seed(t), d, Config{
		Durability: FlushNone, FlushEvery: time.Hour, Log: func(line string) { u.lines = append(u.lines, line) },
	})
	for i := range 24 {
		key := fmt.Sprint("key", i)
		require.NoError(t, u.put(key, "", payload(key, 1, 5000)))
		b, _ := u.s.index.Get(u.s.secret.Hash(&u.digest, []byte(key)))
		u.blocks[key] = int(b.Segment)
	}
	if sealed {
		require.NoError(t, u.s.sealAllOpen())
	}
	image := d.killed()
	u.s.stop()
	return u, image
}

// reopened opens a disk on which a page cannot be read: that is counted and said.
func (u *unreadable) reopened(d *disk, segment int, off int64) {
	d.bad[[2]int64{int64(segment), off / record.PageBytes}] = true
	u.open(d)
	require.NotZero(u.t, u.s.Stats().ReadErrors)
	require.Contains(u.t, strings.Join(u.lines, "\n"), fmt.Sprintf("segment %d cannot be read at byte", segment))
	u.accounts()
}

// TestUnreadableSegment: blocks of a segment with an unreadable first page are misses, those of
// others are there. What was written and deleted since does not come back when the page can be read
// again.
func TestUnreadableSegment(t *testing.T) {
	u, d := newUnreadable(t, true)
	lost := u.blocks["key0"]
	u.reopened(d, lost, 0)
	for key, segment := range u.blocks {
		require.Equal(t, segment != lost, u.has(key), key)
	}
	require.NoError(t, u.put("key0", "", payload("key0", 2, 100)))
	require.True(t, u.delete("key0"))
	require.NoError(t, u.flush())
	clear(d.bad)
	image := d.ends()[1]
	u.s.stop()
	u.open(image)
	require.False(t, u.has("key0"), "it was deleted and flushed")
}

// TestUnreadableAndUnwritable: a segment that can be neither read nor made none is not written to,
// and no flush says that all is well.
func TestUnreadableAndUnwritable(t *testing.T) {
	u, d := newUnreadable(t, true)
	lost := u.blocks["key0"]
	before := append([]byte{}, d.data[lost]...)
	d.fails(func(op string) (float64, error) {
		if op == "write" {
			return 0, errDisk
		}
		return 1, nil
	})
	u.reopened(d, lost, 0)
	require.ErrorContains(t, u.flush(), "may be there again")
	require.Equal(t, before, d.data[lost])
	require.False(t, u.s.segments[lost].isFree())
	d.fails(nil)
	clear(d.bad)
	require.NoError(t, u.flush())
	require.True(t, u.s.segments[lost].isFree())
}

// TestUnreadableFooter: blocks of a segment with an unreadable footer are misses, those of others
// are there.
func TestUnreadableFooter(t *testing.T) {
	u, d := newUnreadable(t, true)
	lost := u.blocks["key0"]
	u.reopened(d, lost, d.segmentBytes-record.PageBytes)
	for key, segment := range u.blocks {
		require.Equal(t, segment != lost, u.has(key), key)
	}
}

// TestStartReadsAgain: what a start cannot read once is there.
func TestStartReadsAgain(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		u, d := newUnreadable(t, sealed)
		reads := 0
		d.fails(func(op string) (float64, error) {
			if op == "read" {
				reads++
			}
			if op == "read" && reads%2 == 1 {
				return 0, errDisk
			}
			return 1, nil
		})
		u.open(d)
		d.fails(nil)
		for key := range u.blocks {
			require.Equal(t, payload(key, 1, 5000), u.get(key))
		}
		require.Zero(t, u.s.Stats().ReadErrors)
	}
}

// TestFooterThatHidRecords: of a deleted block a power cut has kept the mark alone. A start that
// can read the footer does not find the block, and neither does a later one that cannot.
func TestFooterThatHidRecords(t *testing.T) {
	w, sealed := newSealed(t)
	tail := w.s.segments[0].footer
	for what, off := range map[string]int64{"tail": 1<<20 - record.PageBytes, "entries": 1<<20 - tail.EntryOff(40)} {
		cut := w.cutBehindMark(sealed)
		w.s.stop()
		cut.bad[[2]int64{0, off / record.PageBytes}] = true
		w.open(cut)
		require.False(t, w.has("key40"), what)
		require.Zero(t, w.s.index.Len())
		require.NoError(t, w.put("key40", "", payload("key40", 2, 50)))
		require.NoError(t, w.flush())
		image := cut.killed()
		w.s.stop()
		w.open(image)
		require.Equal(t, payload("key40", 2, 50), w.get("key40"))
		require.Equal(t, 1, w.s.index.Len(), "the footer can be read again")
		w.s.stop()
	}
	w.open(sealed)
}

// TestUnreadableRecord: of a segment without a footer the blocks on a page that cannot be read are
// misses, for good.
func TestUnreadableRecord(t *testing.T) {
	for page := range int64(2) { // the header of the first record, and the rest of its payload
		u, d := newUnreadable(t, false)
		last := u.blocks["key23"]
		key := ""
		for i := 23; i >= 0 && u.blocks[fmt.Sprint("key", i)] == last; i-- {
			key = fmt.Sprint("key", i)
		}
		u.reopened(d, last, (1+page)*record.PageBytes)
		for other := range u.blocks {
			require.Equal(t, other != key, u.has(other), other)
		}
		require.NoError(t, u.flush())
		clear(d.bad)
		image := d.ends()[1]
		u.s.stop()
		u.open(image)
		require.False(t, u.has(key))
		u.s.stop()
		u.open(image.killed())
	}
}

const numSealed = 72 // blocks of a page, whose footer has a page of entries, one of marks, and the tail

// newSealed is a disk with a segment that has its footer: key5 is on page 6.
func newSealed(t *testing.T) (*world, *disk) {
	d := newDisk(1<<20, 5)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	for i := range numSealed {
		require.NoError(t, w.put(fmt.Sprint("key", i), "", payload(fmt.Sprint("key", i), 1, 50)))
	}
	require.NoError(t, w.s.sealAllOpen())
	require.NoError(t, w.flush())
	w.s.stop()
	return w, d.killed()
}

// cutBehindMark opens what a power cut has left of a disk of newSealed: the mark of key40, which
// was deleted, and not what its record was overwritten with. The block is not found.
func (w *world) cutBehindMark(sealed *disk) (cut *disk) {
	w.t.Helper()
	d := sealed.killed()
	w.open(d)
	require.True(w.t, w.delete("key40"))
	w.s.stop()
	cut = d.killed()
	copy(cut.data[0][41*record.PageBytes:42*record.PageBytes], sealed.data[0][41*record.PageBytes:])
	w.open(cut)
	require.False(w.t, w.has("key40"))
	require.NoError(w.t, w.flush())
	return cut
}

// TestDroppedFooterHidNothing: a deleted block of which a power cut has kept the mark alone does
// not come back when the footer is dropped later.
func TestDroppedFooterHidNothing(t *testing.T) {
	w, sealed := newSealed(t)
	cut := w.cutBehindMark(sealed)
	cut.bad[[2]int64{0, (1<<20 - w.s.segments[0].footer.EntryOff(5)) / record.PageBytes}] = true
	require.True(t, w.delete("key5"))
	require.NoError(t, w.flush())
	for _, image := range cut.ends() {
		w.s.stop()
		w.open(image)
		require.Equal(t, []bool{false, false, true}, []bool{w.has("key40"), w.has("key5"), w.has("key6")})
		require.Equal(t, numSealed-2, w.s.index.Len())
	}
}

// TestFlushPastUnreadablePages: a block is deleted whose record, or a part of whose footer, cannot
// be read. The delete is flushed, as all that comes later, and holds whether the page can be read
// later or not. No other block is lost, unless the next start cannot read the footer's last page.
func TestFlushPastUnreadablePages(t *testing.T) {
	w, sealed := newSealed(t)
	tail := w.s.segments[0].footer
	for what, off := range map[string]int64{
		"record": 41 * record.PageBytes, "entries": 1<<20 - tail.EntryOff(40), "marks": 1<<20 - tail.MarkOff(40), "tail": 1<<20 - record.PageBytes,
	} {
		d := sealed.killed()
		w.open(d)
		d.bad[[2]int64{0, off / record.PageBytes}] = true
		require.True(t, w.delete("key40"))
		require.NoError(t, w.flush(), what)
		require.NoError(t, w.put("later", "", payload("later", 1, 50)))
		require.NoError(t, w.flush(), what)
		images := d.ends()
		images[0].bad = maps.Clone(d.bad)
		w.s.stop()
		for _, image := range images {
			w.open(image)
			require.False(t, w.has("key40"), what)
			require.NotNil(t, w.get("later"))
			lost := what == "tail" && len(image.bad) > 0 // it cannot say any more what was deleted
			for i := range numSealed {
				require.Equal(t, i != 40 && !lost, w.has(fmt.Sprint("key", i)), "%s: key %d", what, i)
			}
			w.s.stop()
		}
	}
	w.open(sealed)
}

// TestUnreadableForAWhile: a block with a record that cannot be read once is a miss, and stays, whatever
// is put. If the disk fails at it for long the block is gone, and its key is free.
func TestUnreadableForAWhile(t *testing.T) {
	w, d := newSealed(t)
	w.open(d)
	want, fails := payload("key5", 1, 50), func(fails bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.bad[[2]int64{0, 6}] = fails
	}
	long := func() { w.s.doubts.age(doubtFor) }
	fails(true)
	require.Nil(t, w.get("key5"))
	require.ErrorIs(t, w.put("key5", "", want), ErrUnreadable)
	require.ErrorIs(t, w.put("key5", "", payload("key5", 2, 50)), errDisk)
	fails(false)
	require.Equal(t, want, w.get("key5"))
	require.ErrorIs(t, w.put("key5", "", payload("key5", 2, 50)), ErrConflict)
	fails(true)
	long() // of a time that is over
	require.Nil(t, w.get("key5"))
	require.True(t, w.has("key5"))
	require.Zero(t, w.s.Stats().Spoiled)
	long()
	require.NoError(t, w.put("key5", "", want))
	require.Equal(t, want, w.get("key5"))
	require.EqualValues(t, 1, w.s.Stats().Spoiled)
	require.Zero(t, w.s.doubts.num.Load())
	w.accounts()
}

// age lets time pass.
func (d *doubts) age(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for h, one := range d.met {
		d.met[h] = doubt{one.first.Add(-by), one.last.Add(-by)}
	}
}

// TestManyUnreadableBlocks: of more blocks than may be noted, which are asked for in turn, each is
// lost in the end, also where those that were noted first are asked for no more.
func TestManyUnreadableBlocks(t *testing.T) {
	var d doubts
	var left []record.Hash
	for i := range 3 * maxDoubts {
		h := record.Hash{byte(i), byte(i >> 8)}
		require.False(t, d.meet(h))
		if i >= maxDoubts {
			left = append(left, h)
		}
	}
	for range 8 {
		d.age(doubtFor)
		left = slices.DeleteFunc(left, func(h record.Hash) bool {
			isLost := d.meet(h)
			if isLost {
				d.end(h)
			}
			return isLost
		})
		require.LessOrEqual(t, len(d.met), maxDoubts)
	}
	require.Zero(t, len(left))
}

// A complaint about a block ends that one, and none that its key has got since.
func TestBadIsOfOneBlock(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<16, 8)}, Config{})
	lease := func() *Lease {
		leases := make([]Lease, 1)
		require.Equal(t, 1, w.s.Acquire(w.ns, [][]byte{[]byte("key")}, leases))
		return &leases[0]
	}
	require.NoError(t, w.put("key", "", payload("key", 1, 5000)))
	old := lease()
	require.True(t, w.delete("key"))
	data := payload("key", 2, 5000)
	require.NoError(t, w.put("key", "", data))
	old.Bad()
	require.Equal(t, data, w.get("key"))
	require.Zero(t, w.s.Stats().Spoiled)
	old.Release()
	now := lease()
	now.Bad()
	now.Bad()
	require.False(t, w.has("key"))
	require.EqualValues(t, 1, w.s.Stats().Spoiled)
	now.Release()
	now.Bad()
	w.accounts()
	for i := range w.s.segments {
		require.Zero(t, w.s.segments[i].refs.Load())
	}
}
