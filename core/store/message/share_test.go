package message

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/tag"
)

func TestShareRoundTrip(t *testing.T) {
	for _, c := range []struct {
		bytes uint64
		ok    bool
	}{{0, false}, {1, true}, {maxArenaBytes, true}, {maxArenaBytes + 1, false}, {1 << 63, false}} {
		s, got := Shared{ArenaBytes: c.bytes, HoldUs: 7}, Shared{}
		err := got.Decode(s.Append(nil))
		require.Equal(t, c.ok, err == nil, "%d", c.bytes)
		if c.ok {
			require.Equal(t, s, got)
		}
	}
}

// A place is that of a block within the arena, or of none.
func TestPlaces(t *testing.T) {
	hit, miss := Entry{Bytes: 100}, Entry{Status: Miss}
	for _, c := range []struct {
		e     Entry
		place uint64
		ok    bool
	}{
		{hit, 0, true}, {hit, 900, true}, {hit, 901, false}, {hit, 1 << 63, false}, {hit, 1<<64 - 1, false},
		{hit, 1<<64 - 100, false}, {miss, 0, true}, {miss, 1, false}, {Entry{}, 1000, true}, {Entry{}, 1001, false},
	} {
		c.e.Handle = 0
		long := c.e.AppendPlaced(nil, c.place)
		short := c.e
		short.Handle = c.place
		for _, b := range [][]byte{long, short.AppendLookup(nil)} {
			var e Entry
			place, err := e.DecodePlaced(b, 1000)
			require.Equal(t, c.ok, err == nil, "%+v", c)
			if c.ok {
				require.Equal(t, c.place, place)
				require.Equal(t, c.e, e)
			}
		}
	}
}

// Only a get, a lookup and a put have flags, and no other one than that.
func TestFlags(t *testing.T) {
	for code := range Code(NumCodes) {
		for flags := range uint16(4) {
			said := Request{Flags: flags, NumKeys: 1, KeyBytes: 1}
			var r Request
			payload := map[Code]int64{Put: 1, Allocate: 1, List: 1, Release: 8, Share: NameBytes}[code]
			if payload == 0 && keyed(code) {
				payload = 3
			}
			err := r.Decode(code, said.Encode(make([]byte, RequestBytes)), payload)
			allowed := CodeName(code) != "" && (flags == 0 || flags == FlagPlace && (code == Get || code == Lookup || code == Put))
			require.Equal(t, allowed, err == nil, "%s %d", CodeName(code), flags)
		}
	}
}

// keyed reports whether the payload is a table.
func keyed(code Code) bool {
	switch code {
	case Get, Delete, Exists, Touch, Pin, Lookup, Bad:
		return true
	}
	return false
}

// bouncedPut is a put of which the block ends where the bounce buffer does.
func bouncedPut() *Request {
	return &Request{
		Namespace: 3, Flags: FlagPlace, Bytes: 0x102030, Offset: MaxBounceBytes - 0x102030, Tag: tag.Tag{1, 2, 15: 3}, KeyBytes: 5, Parent: 2,
	}
}

// A bounced put has its block wholly within the longest bounce buffer, and not in its payload too.
func TestBouncedPut(t *testing.T) {
	for _, c := range []struct {
		change  func(*Request)
		payload int64
		ok      bool
	}{
		{func(*Request) {}, 7, true},
		{func(r *Request) { r.Offset = 0 }, 7, true},
		{func(r *Request) { r.Bytes, r.Offset = 0, MaxBounceBytes }, 7, true},
		{func(r *Request) { r.Bytes, r.Offset = MaxBounceBytes, 0 }, 7, true},
		{func(r *Request) { r.Offset++ }, 7, false},
		{func(r *Request) { r.Bytes++ }, 7, false},
		{func(r *Request) { r.Offset = 1<<64 - 1 }, 7, false},
		{func(r *Request) { r.Offset = -uint64(r.Bytes) }, 7, false},
		{func(r *Request) { r.Bytes, r.Offset = MaxBounceBytes+1, 0 }, 7, false},
		{func(r *Request) { r.KeyBytes = 0 }, 2, false},
		{func(*Request) {}, 7 + 0x102030, false},
	} {
		said := bouncedPut()
		c.change(said)
		var r Request
		err := r.Decode(Put, said.Encode(make([]byte, RequestBytes)), c.payload)
		require.Equal(t, c.ok, err == nil, "%+v, %d", said, c.payload)
		if c.ok {
			require.Equal(t, *said, r)
		}
	}
}
