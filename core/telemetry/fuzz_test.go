package telemetry

import (
	"encoding/binary"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/rankset"
)

// wildWords are what a word of shared memory may hold that its owner never
// wrote.
var wildWords = []uint64{0, 1, rankset.MaxRanks, rankset.MaxRanks + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 1, 0x4141414141414141}

// look does everything that a reader does with an area, and checks the shape
// of what it gets.
func look(t *testing.T, a Area, rank, ranks int) {
	s := a.Stats(rank, ranks)
	require.Equal(t, rank, s.Rank)
	require.Equal(t, ranks, s.NumRanks)
	for _, list := range [][]uint64{s.RowsTo, s.RowsFrom, s.Dispatch.WaitFor, s.Dispatch.Last, s.Combine.WaitFor, s.Combine.Last} {
		require.Len(t, list, ranks)
	}
	require.LessOrEqual(t, len(s.Experts), MaxExperts)
	all := a.Records(0)
	require.LessOrEqual(t, len(all), Capacity)
	for i := range all {
		require.True(t, all[i].sound())
	}
	require.LessOrEqual(t, len(a.Records(7)), 7)
	for r := range ranks {
		a.Link(r)
	}
	a.Current()
	a.PID()
	_, err := json.Marshal(s) // what mw_buffer_stats shows
	require.NoError(t, err)
}

// TestWildWords: whatever one word of the header holds, a reader gets lists of
// the length that it asked for, and the owner goes on writing.
func TestWildWords(t *testing.T) {
	for word := range kindsAt {
		for _, v := range wildWords {
			a := newArea()
			r := numbered(0)
			a.Add(&r)
			a.word(word).Store(v)
			look(t, a, 1, 3)
			a.Add(&r)
			look(t, a, 1, 3)
		}
	}
}

// TestWildRecords: of a record, only what an operation can have left comes back.
func TestWildRecords(t *testing.T) {
	for word, wild := range map[int64]uint64{
		1: 3, 2: 1 << 32, 3: 0, 4: 1 << 63, 9: 1 << 63, // kind, tokens, operation, start, end
	} {
		a := newArea()
		r := numbered(0)
		a.Add(&r)
		a.mem.Word(a.slot(1) + word*8).Store(wild)
		want := 0
		if word == 2 || word == 3 { // any number is one
			want = 1
		}
		require.Len(t, a.Records(0), want, word)
	}
	for _, w := range []uint64{0, 1 | 3<<16, 1 | rankset.MaxRanks<<48, 1 | 0xfffe<<48} { // no kind, outcome, last
		a := newArea()
		r := numbered(0)
		a.Add(&r)
		a.mem.Word(a.slot(1) + 8).Store(w)
		require.Empty(t, a.Records(0), "%#x", w)
	}
}

// FuzzArea: any words anywhere in an area cost neither a panic nor memory.
func FuzzArea(f *testing.F) {
	f.Add([]byte{}, uint8(3))
	f.Add(wild(wordPlace, 1<<63-1), uint8(rankset.MaxRanks))
	f.Add(wild(wordExperts, 1<<64-1), uint8(1))
	f.Add(wild(wordNext, 1<<64-1), uint8(48))
	f.Fuzz(func(t *testing.T, writes []byte, ranks uint8) {
		a := newArea()
		r := numbered(5)
		a.Add(&r)
		for ; len(writes) >= 12; writes = writes[12:] {
			word := binary.LittleEndian.Uint32(writes) % (AreaBytes / 8)
			a.word(int(word)).Store(binary.LittleEndian.Uint64(writes[4:]))
		}
		n := int(ranks)%rankset.MaxRanks + 1
		look(t, a, n-1, n)
	})
}

// wild is FuzzArea's input for one word.
func wild(word int, v uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, uint32(word)), v)
}
