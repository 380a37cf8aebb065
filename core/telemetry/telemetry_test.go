package telemetry

import (
	"bytes"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// heap is an area outside any shared memory.
type heap struct{ words []atomic.Uint64 }

func newArea() Area {
	a := At(&heap{make([]atomic.Uint64, AreaBytes/8)}, 0)
	a.Open(Place{Rank: 1, NumRanks: 3, PID: 7, NumSlots: 2, Recording: true})
	return a
}

func (h *heap) Word(off int64) *atomic.Uint64 { return &h.words[off/8] }

// numbered is a record in which every field follows from one number.
func numbered(n uint64) Record {
	return Record{
		Kind: Dispatch + Kind(n%2), Outcome: Outcome(n % 3), Epoch: membership.Epoch(n), Last: int16(n%4) - 1,
		Combine: uint32(n + 1), Tokens: uint32(n + 2), Op: n, Start: int64(n + 3), Place: int64(n + 4),
		Sent: int64(n + 5), Resume: int64(n + 6), Seen: int64(n + 7), End: int64(n + 8), Wait: int64(n + 9),
		LastAlone: int64(n + 10), RowsOut: uint32(n + 11), RowsIn: uint32(n + 12), Bytes: n + 13, Present: n + 14, Missing: rankset.FromWord(n + 15),
	}
}

// TestRing: the newest records come back whole and in order, however many
// there were.
func TestRing(t *testing.T) {
	a := newArea()
	require.Empty(t, a.Records(0))
	for n := range uint64(3*Capacity + 5) {
		r := numbered(n)
		a.Add(&r)
	}
	all := a.Records(0)
	require.Len(t, all, Capacity)
	for i, r := range all {
		want := numbered(uint64(2*Capacity + 5 + i))
		want.Sequence = uint32(want.Op) + 1
		require.Equal(t, want, r)
	}
	require.Equal(t, all[Capacity-7:], a.Records(7))
}

// TestTornRecords: a reader that reads while the owner writes gets whole records or
// none.
func TestTornRecords(t *testing.T) {
	a := newArea()
	var wg sync.WaitGroup
	var stop atomic.Bool
	wg.Add(1)
	go func() {
		defer wg.Done()
		for n := uint64(0); !stop.Load(); n++ {
			r := numbered(n)
			a.Add(&r)
		}
	}()
	seen := 0
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
		for _, r := range a.Records(0) {
			want := numbered(r.Op)
			want.Sequence = uint32(r.Op) + 1
			if r != want {
				t.Fatalf("torn: %+v", r)
			}
			seen++
		}
	}
	stop.Store(true)
	wg.Wait()
	require.NotZero(t, seen)
}

func TestBuckets(t *testing.T) {
	for ns, want := range map[uint64]int{0: 0, 1: 1, 2: 2, 3: 2, 4: 3, 1023: 10, 1024: 11, 1 << 62: NumBuckets - 1} {
		require.Equal(t, want, bucket(ns), ns)
	}
}

// TestTotals: sums, by kind, of done operations only.
func TestTotals(t *testing.T) {
	a := newArea()
	for _, r := range []Record{
		{Kind: Combine, Last: 2, Start: 100, Place: 110, Sent: 150, Resume: 400, Seen: 450, End: 500, Wait: 50, Bytes: 7, RowsOut: 3},
		{Kind: Combine, Last: -1, Start: 1000, Sent: 1010, Seen: 1015, End: 1030, Bytes: 5},
		{Kind: Combine, Outcome: Cancelled, Last: 1, Start: 1, End: 1 << 40, Bytes: 1 << 40},
	} {
		a.Add(&r)
	}
	got := a.Stats(1, 3)
	require.Zero(t, got.Dispatch.Done)
	c := got.Combine
	require.Equal(t, []uint64{2, 0, 1}, []uint64{c.Done, c.Failed, c.Cancelled})
	require.Equal(t, []uint64{50 + 100 + 30, 50, 150}, []uint64{c.Time, c.Wait, c.Max}, "without the time between call and hook")
	require.Equal(t, []uint64{40 + 10, 50 + 15, 12, 3}, []uint64{c.Send, c.Work, c.Bytes, c.RowsOut})
	require.Equal(t, []uint64{0, 0, 1}, c.Last)
	require.Equal(t, uint64(1), c.Times[bucket(150)])
	require.Equal(t, uint64(1), c.Times[bucket(30)])
}

// TestEvents: numbered from 1, the latest are kept.
func TestEvents(t *testing.T) {
	var e Events
	for i := range MaxEvents + 10 {
		require.EqualValues(t, i+1, e.Add(Event{Rank: i}))
	}
	got, latest := e.After(0)
	require.Len(t, got, MaxEvents)
	require.EqualValues(t, MaxEvents+10, latest)
	require.EqualValues(t, 11, got[0].Sequence)
	require.Equal(t, 10, got[0].Rank)
	got, _ = e.After(latest - 1)
	require.Len(t, got, 1)
	got, _ = e.After(latest)
	require.Empty(t, got)
}

// TestClock: the clock is the host's, not one counted from somewhere else.
func TestClock(t *testing.T) {
	one := NewClock()
	time.Sleep(10 * time.Millisecond)
	two := NewClock()
	const apart = int64(time.Millisecond) // what two clocks may differ by
	before, now, after := two.Now(), one.Now(), two.Now()
	require.LessOrEqual(t, before-apart, now)
	require.LessOrEqual(t, now, after+apart)
	before, now, after = one.Now(), one.At(time.Now()), one.Now()
	require.LessOrEqual(t, before, now)
	require.LessOrEqual(t, now, after)
}

// TestPut: a caller with a smaller struct gets what it has room for, one with
// a larger struct zeros after it.
func TestPut(t *testing.T) {
	r := numbered(9)
	r.Sequence = 10
	whole := make([]byte, RecordBytes)
	r.Put(whole, binary.NativeEndian.PutUint64)
	require.EqualValues(t, RecordBytes, binary.NativeEndian.Uint32(whole))
	require.EqualValues(t, 10, binary.NativeEndian.Uint32(whole[4:]))
	for _, size := range []int{8, 13, 40, 200} {
		got := bytes.Repeat([]byte{0xaa}, size)
		r.Put(got, binary.NativeEndian.PutUint64)
		require.EqualValues(t, size, binary.NativeEndian.Uint32(got))
		n := min(size, RecordBytes)
		require.Equal(t, whole[4:n], got[4:n])
		require.Equal(t, make([]byte, size-n), got[n:])
	}
}
