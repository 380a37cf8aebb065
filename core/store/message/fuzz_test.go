package message

import (
	"bytes"
	"testing"
)

// FuzzRequest: what is accepted is within bounds, and is the same when it is written again.
func FuzzRequest(f *testing.F) {
	r := sampleRequest()
	f.Add(byte(Put), r.Encode(make([]byte, RequestBytes)), int64(0x0b0c+0x0131+0x0133))
	f.Add(byte(Put), bouncedPut().Encode(make([]byte, RequestBytes)), int64(7))
	f.Add(byte(Get), (&Request{NumKeys: 2}).Encode(make([]byte, RequestBytes)), int64(20))
	f.Fuzz(func(t *testing.T, code byte, b []byte, payload int64) {
		payload &= 1<<40 - 1
		var r Request
		if r.Decode(code, b, payload) != nil {
			return
		}
		if payload > MaxPayloadBytes || CodeName(code) == "" {
			t.Fatal("a payload over its bound, or no code")
		}
		if !bytes.Equal(r.Encode(make([]byte, RequestBytes)), b) {
			t.Fatal("decoding and encoding has changed it")
		}
	})
}

// FuzzKeys: a table that is accepted is the one that its keys make.
func FuzzKeys(f *testing.F) {
	f.Add(AppendKey(AppendKey(nil, []byte("a")), []byte("bc")), 2)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		n &= MaxKeys - 1
		keys, err := Keys(nil, b, n)
		if err != nil {
			return
		}
		var again []byte
		for _, k := range keys {
			if !CheckKey(k) {
				t.Fatal("a key of a length that no key has")
			}
			again = AppendKey(again, k)
		}
		if len(keys) != n || !bytes.Equal(again, b) {
			t.Fatal("the table is another one")
		}
	})
}

// FuzzNamespace: so it is with namespaces.
func FuzzNamespace(f *testing.F) {
	n := Namespace{"a", "b", "c", "d", "e", "f", "g"}
	f.Add(n.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var n Namespace
		if n.Decode(b) == nil && (!bytes.Equal(n.Append(nil), b) || n.Bytes() > MaxNamespaceBytes) {
			t.Fatal("decoding and encoding has changed it")
		}
	})
}

// FuzzReplies: and with all that a server says.
func FuzzReplies(f *testing.F) {
	o, e := sampleOpened(), sampleEntry()
	p := Part{First: 1, NumKeys: 2}
	f.Add(o.Encode(make([]byte, OpenedBytes)))
	f.Add(e.AppendLookup(nil))
	f.Add(p.Encode(make([]byte, PartExtraBytes)))
	f.Add(AppendFound(nil, 1, []bool{true, false, true}))
	f.Add(AppendListed(nil, []byte("x"), [][]byte{[]byte("a"), []byte("b")}))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o Opened
		if o.Decode(b) == nil && !bytes.Equal(o.Encode(make([]byte, OpenedBytes)), b) {
			t.Fatal("Opened")
		}
		var e Entry
		var s Shared
		if s.Decode(b) == nil && !bytes.Equal(s.Append(nil), b) {
			t.Fatal("Shared")
		}
		if place, err := e.DecodePlaced(b, 1<<30); err == nil && (place+uint64(e.Bytes) > 1<<30 || len(b) == PlacedBytes && !bytes.Equal(e.AppendPlaced(nil, place), b)) {
			t.Fatal("Entry with a place")
		}
		if e.Decode(b) == nil && !bytes.Equal(e.AppendLookup(nil)[:len(b)], b) {
			t.Fatal("Entry")
		}
		var p Part
		if p.Decode(b, 100) == nil && (!bytes.Equal(p.Encode(make([]byte, PartExtraBytes)), b) || int(p.First)+int(p.NumKeys) > 100) {
			t.Fatal("Part")
		}
		found := make([]bool, 13)
		if n, err := Found(b, found); err == nil && !bytes.Equal(AppendFound(nil, n, found), b) {
			t.Fatal("Found")
		}
		if keys, cursor, err := Listed(nil, b); err == nil && !bytes.Equal(AppendListed(nil, cursor, keys), b) {
			t.Fatal("Listed")
		}
	})
}
