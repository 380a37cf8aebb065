package message

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/tag"
)

// sampleRequest has another number in every field.
func sampleRequest() Request {
	r := Request{
		Namespace: 0x01020304, NumKeys: 0x0506, DeadlineUs: 0x0708090a, Bytes: 0x0b0c, Handle: 0x1112131415161718,
		Offset: 0x2122232425262728, KeyBytes: 0x0131, Parent: 0x0133,
	}
	for i := range r.Tag {
		r.Tag[i] = byte(0x40 + i)
	}
	return r
}

func sampleOpened() Opened {
	o := Opened{Namespace: 3, NumKeys: 512, BatchBytes: 64 << 20, BlockBytes: 12345678, Contexts: 32, Storage: 2}
	for i := range o.Boot {
		o.Boot[i] = byte(0x80 + i)
	}
	for i := range o.TagKey {
		o.TagKey[i] = byte(0xf0 - i)
	}
	return o
}

func sampleEntry() Entry {
	return Entry{Status: OK, Bytes: 0x010203, Tag: tag.Tag{1, 2, 3, 15: 9}, Handle: 0x3132333435363738}
}

func TestRequestThereAndBack(t *testing.T) {
	want := sampleRequest()
	b := want.Encode(make([]byte, 100))
	require.Len(t, b, RequestBytes)
	var got Request
	require.NoError(t, got.Decode(Put, b, int64(want.KeyBytes)+int64(want.Parent)+int64(want.Bytes)))
	require.Equal(t, want, got)
}

// What a payload must be long depends on the code, and is exact where it can be.
func TestRequestsHaveFittingPayloads(t *testing.T) {
	for _, c := range []struct {
		code     Code
		said     Request
		low, top int64 // of what is allowed; -1: nothing
	}{
		{Open, Request{}, 0, MaxNamespaceBytes},
		{Put, Request{KeyBytes: 5, Parent: 2, Bytes: 100}, 107, 107},
		{Put, Request{KeyBytes: 512, Parent: 512, Bytes: MaxBlockBytes}, MaxBlockBytes + 1024, MaxBlockBytes + 1024},
		{Put, Request{KeyBytes: 5, Bytes: MaxBlockBytes + 1}, -1, -1},
		{Put, Request{KeyBytes: 513, Bytes: 1}, -1, -1},
		{Put, Request{Bytes: 1}, -1, -1},
		{Put, Request{KeyBytes: 1, Parent: 513}, -1, -1},
		{Allocate, Request{KeyBytes: 5, Parent: 2, Bytes: 100}, 7, 7},
		{Get, Request{NumKeys: 2}, 5, 2 * 514},
		{Exists, Request{NumKeys: 512}, 1025, MaxTableBytes},
		{Exists, Request{NumKeys: 513}, -1, -1},
		{Delete, Request{}, -1, -1},
		{Touch, Request{NumKeys: 1}, 3, 514},
		{Pin, Request{NumKeys: 1}, 3, 514},
		{Lookup, Request{NumKeys: 1}, 3, 514},
		{Bad, Request{NumKeys: 1}, 3, 514},
		{Bad, Request{NumKeys: 2}, -1, -1},
		{Bad, Request{}, -1, -1},
		{List, Request{KeyBytes: 7, Parent: 8}, 15, 15},
		{List, Request{KeyBytes: 513}, -1, -1},
		{List, Request{Parent: 1025}, -1, -1},
		{Stats, Request{}, 0, 0},
		{Flush, Request{}, 0, 0},
		{Commit, Request{Handle: 1}, 0, 0},
		{Abort, Request{Handle: 1}, 0, 0},
		{Write, Request{Bytes: 9}, 9, 9},
		{Read, Request{Bytes: PartBytes}, 0, 0},
		{Read, Request{Bytes: PartBytes + 1}, -1, -1},
		{Release, Request{NumKeys: 3}, 24, 24},
		{Release, Request{NumKeys: 513}, -1, -1},
		{0x00, Request{}, -1, -1},
		{0xff, Request{}, -1, -1},
	} {
		b := c.said.Encode(make([]byte, RequestBytes))
		fits := func(n int64) bool {
			var r Request
			return r.Decode(c.code, b, n) == nil
		}
		for _, n := range []int64{0, 1, c.low, c.top, 4096, MaxTableBytes} {
			require.Equal(t, c.low >= 0 && n >= c.low && n <= c.top, n >= 0 && fits(n), "%s %+v with %d bytes", CodeName(c.code), c.said, n)
		}
		require.False(t, fits(c.top+1))
		require.False(t, c.low > 0 && fits(c.low-1))
	}
}

// Whatever bit of a request is not known is refused.
func TestUnknownBitsOfRequests(t *testing.T) {
	r := Request{}
	for at, known := range map[int]bool{0: true, 6: false, 7: false, 8: true, 52: false, 53: false, 54: false, 55: false} {
		b := r.Encode(make([]byte, RequestBytes))
		b[at] = 1
		require.Equal(t, known, new(Request).Decode(Flush, b, 0) == nil, at)
	}
	b := r.Encode(make([]byte, RequestBytes))
	require.ErrorIs(t, new(Request).Decode(Flush, b[:55], 0), ErrMalformed)
	require.ErrorIs(t, new(Request).Decode(Flush, append(b, 0), 0), ErrMalformed)
}

func TestNamesOfCodesAndStatuses(t *testing.T) {
	seen := map[string]bool{}
	for c := range 256 {
		if name := CodeName(Code(c)); name != "" {
			require.False(t, seen[name])
			seen[name] = true
		}
	}
	require.Len(t, seen, 19)
	for s := range NumStatuses {
		require.NotContains(t, s.String(), "Status")
	}
	require.Equal(t, "Status(77)", Status(77).String())
	for s, refuses := range map[Status]bool{OK: false, Existing: false, Miss: false, Conflict: true, Late: true} {
		require.Equal(t, refuses, s.Refuses(), s)
	}
}

func TestNamespaceDigest(t *testing.T) {
	base := Namespace{"a", "b", "c", "d", "e", "f", "g"}
	seen := map[[32]byte]bool{base.Digest(): true}
	for i := range numFields {
		other := base
		*other.fields()[i] += "x"
		require.False(t, seen[other.Digest()], i)
		seen[other.Digest()] = true
	}
	moved := Namespace{Model: "ab", Weights: "", DType: "c", Layout: "d", Chunk: "e", Parallel: "f", Salt: "g"}
	require.False(t, seen[moved.Digest()], "a byte that moves to another field")
	require.Len(t, base.Append(nil), base.Bytes())
	var back Namespace
	require.NoError(t, back.Decode(base.Append(nil)))
	require.Equal(t, base, back)
	require.ErrorIs(t, back.Decode(append(base.Append(nil), 0)), ErrMalformed)
	long := Namespace{Salt: strings.Repeat("x", MaxNamespaceBytes-4*numFields)}
	require.NoError(t, back.Decode(long.Append(nil)))
	long.Salt += "x"
	require.ErrorIs(t, back.Decode(long.Append(nil)), ErrMalformed)
}

func TestRepliesThereAndBack(t *testing.T) {
	opened := sampleOpened()
	var o Opened
	require.NoError(t, o.Decode(opened.Encode(make([]byte, OpenedBytes))))
	require.Equal(t, opened, o)
	for _, p := range []Part{{First: 3, NumKeys: 4}, {First: 3, NumKeys: 7, Last: true}, {First: 9, NumKeys: 1, Last: true, Offset: 5 * PartBytes}} {
		var got Part
		require.NoError(t, got.Decode(p.Encode(make([]byte, PartExtraBytes)), 10))
		require.Equal(t, p, got)
	}
	for _, p := range []Part{
		{First: 3, NumKeys: 8}, {First: 3}, {First: 3, NumKeys: 4, Last: true}, {First: 3, NumKeys: 2, Offset: PartBytes}, {First: 3, NumKeys: 1, Offset: 5},
	} {
		require.ErrorIs(t, new(Part).Decode(p.Encode(make([]byte, PartExtraBytes)), 10), ErrMalformed, "%+v", p)
	}
	entry := sampleEntry()
	var e Entry
	require.NoError(t, e.Decode(entry.AppendLookup(nil)))
	require.Equal(t, entry, e)
	require.NoError(t, e.Decode(entry.Append(nil)))
	entry.Handle = 0
	require.Equal(t, entry, e)
	for _, bad := range []Entry{{Status: Conflict}, {Status: Miss, Bytes: 1}, {Status: OK, Bytes: MaxBlockBytes + 1}} {
		require.ErrorIs(t, e.Decode(bad.Append(nil)), ErrMalformed)
	}
}

func TestFoundThereAndBack(t *testing.T) {
	for _, n := range []int{1, 7, 8, 9, 512} {
		found := make([]bool, n)
		for i := range found {
			found[i] = i%3 == 1
		}
		b := AppendFound(nil, n/3, found)
		require.Len(t, b, FoundBytes(n))
		got := make([]bool, n)
		number, err := Found(b, got)
		require.NoError(t, err)
		require.Equal(t, n/3, number)
		require.Equal(t, found, got)
		if n%8 > 0 {
			b[len(b)-1] |= 0x80
			_, err = Found(b, got)
			require.ErrorIs(t, err, ErrMalformed, "a bit of no key")
		}
		_, err = Found(AppendFound(nil, n+1, found), got)
		require.ErrorIs(t, err, ErrMalformed)
	}
}

func TestListedThereAndBack(t *testing.T) {
	keys := [][]byte{[]byte("a"), []byte("bc"), bytes.Repeat([]byte("x"), MaxKeyBytes)}
	b := AppendListed(nil, []byte("cursor"), keys)
	got, cursor, err := Listed(nil, b)
	require.NoError(t, err)
	require.Equal(t, keys, got)
	require.Equal(t, "cursor", string(cursor))
	for n := range b {
		got, cursor, err := Listed(nil, b[:n])
		require.True(t, err != nil || bytes.Equal(AppendListed(nil, cursor, got), b[:n]), n)
	}
	many := make([][]byte, MaxKeys+1)
	for i := range many {
		many[i] = []byte("k")
	}
	_, _, err = Listed(nil, AppendListed(nil, nil, many))
	require.ErrorIs(t, err, ErrMalformed)
}

// Reading bytes that are not trusted allocates nothing where the server does it for every request.
func TestParsersAllocateNothing(t *testing.T) {
	r := sampleRequest()
	b := r.Encode(make([]byte, RequestBytes))
	var table []byte
	for range MaxKeys {
		table = AppendKey(table, []byte("some key"))
	}
	keys := make([][]byte, 0, MaxKeys)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		_ = r.Decode(Put, b, 0)
		keys, _ = Keys(keys[:0], table, MaxKeys)
	}))
	require.Len(t, keys, MaxKeys)
}
