package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/record"
)

// region is bytes of a segment, and what a start and a get of every key have to do once a bit of them is flipped.
type region struct {
	name                      string
	from, to                  int64
	lost                      []string // keys that are misses
	spoiled, damaged, scanned uint64   // what is counted
	any                       bool     // the bytes mean nothing: some of their bits are flipped
}

// engraved is a disk with some blocks in its first segment, one behind the other.
type engraved struct {
	*world
	image  *disk
	keys   []string
	blocks map[string][]byte
	places map[string]int64
	next   int64
}

func engrave(t *testing.T, sealed bool) *engraved {
	d := newDisk(1<<15, 4)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	e := &engraved{world: w, keys: []string{"a", "bb", "ccc"}, places: map[string]int64{}}
	e.blocks = map[string][]byte{"a": payload("a", 1, 300), "bb": payload("bb", 1, 4500), "ccc": {}}
	for _, key := range e.keys {
		require.NoError(t, w.put(key, "", e.blocks[key]))
		b, found := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte(key)))
		require.True(t, found)
		require.Zero(t, b.Segment)
		e.places[key] = int64(b.Off) * record.PageBytes
		e.next = e.places[key] + b.RecordBytes()
	}
	if sealed {
		require.NoError(t, w.s.sealAllOpen())
	}
	e.image = d.killed()
	w.s.stop()
	t.Cleanup(func() { w.open(e.image.killed()) }) // newWorld closes what is open
	return e
}

// records are the regions of all records, by the table in docs/store.md.
func (e *engraved) records(sealed bool) (list []region) {
	scanned := uint64(1)
	if sealed {
		scanned = 0
	}
	for i, key := range e.keys {
		at, end := e.places[key], e.next
		if i+1 < len(e.keys) {
			end = e.places[e.keys[i+1]]
		}
		headed := at + record.HeaderBytes + int64(len(key))
		begins := at + (headed-at+63)/64*64
		ends := begins + int64(len(e.blocks[key]))
		head := region{name: "header of " + key, from: at, to: headed, lost: []string{key}, spoiled: 1, scanned: scanned}
		if !sealed && i+1 == len(e.keys) {
			head.spoiled = 0 // nothing tells it from what an earlier life has left
		}
		list = append(list, head,
			region{name: "padding of " + key, from: headed, to: begins, scanned: scanned},
			region{name: "payload of " + key, from: begins, to: ends, lost: []string{key}, spoiled: 1, scanned: scanned},
			region{name: "rest of " + key, from: ends, to: end, scanned: scanned, any: true})
	}
	return list
}

// regions are those of the whole segment.
func (e *engraved) regions(sealed bool) []region {
	unsealed := uint64(1)
	if sealed {
		unsealed = 0
	}
	first := region{name: "first page", to: 64, lost: e.keys, damaged: 1}
	rest := region{name: "first page, zeros", from: 64, to: record.PageBytes, lost: e.keys, damaged: 1, any: true}
	list := append([]region{first, rest}, e.records(sealed)...)
	if !sealed {
		return append(list, region{name: "free", from: e.next, to: e.image.segmentBytes, scanned: unsealed, any: true})
	}
	n, footer := int64(len(e.keys)), e.image.segmentBytes-2*record.PageBytes
	marks, tail := footer+n*record.EntryBytes+32, footer+record.PageBytes
	list = append(list,
		region{name: "free", from: e.next, to: footer, any: true},
		region{name: "entries", from: footer, to: marks, scanned: 1})
	for i, key := range e.keys {
		at := marks + int64(i)
		list = append(list, region{name: "mark of " + key, from: at, to: at + 1, lost: []string{key}, spoiled: 1})
	}
	return append(list,
		region{name: "behind the marks", from: marks + n, to: tail, scanned: 1, any: true},
		region{name: "tail", from: tail, to: tail + 80, scanned: 1},
		region{name: "behind the tail", from: tail + 80, to: e.image.segmentBytes, scanned: 1, any: true})
}

// TestSomeBits flips bits of a segment, one at a time, between two starts: a reader gets the right bytes or none, and what is lost
// is counted. Package record flips every bit of all pages.
func TestSomeBits(t *testing.T) { flipBits(t, 61) }

// TestEveryBit flips every bit that means something, and some of the others.
func TestEveryBit(t *testing.T) {
	testenv.InAll(t)
	flipBits(t, 1)
}

// flipBits flips one of so many bits.
func flipBits(t *testing.T, step int64) {
	for _, sealed := range []bool{false, true} {
		t.Run(fmt.Sprint("sealed ", sealed), func(t *testing.T) {
			e := engrave(t, sealed)
			end := int64(0)
			for _, r := range e.regions(sealed) {
				require.Equal(t, end, r.from, r.name)
				end = r.to
				every := step
				if r.any {
					every = 499 * step
				}
				for bit := 8*r.from + e.rng.Int64N(every); bit < 8*r.to; bit += every {
					e.flip(&r, bit)
				}
			}
			require.Equal(t, e.image.segmentBytes, end)
		})
	}
}

func (e *engraved) flip(r *region, bit int64) {
	d := e.image.killed()
	d.data[0][bit/8] ^= 1 << (bit % 8)
	e.open(d)
	defer e.s.stop()
	for _, key := range e.keys {
		got := e.get(key)
		if slices.Contains(r.lost, key) {
			require.Nil(e.t, got, "%s: %s, bit %d", key, r.name, bit-8*r.from)
			require.False(e.t, e.has(key), "%s: %s, bit %d", key, r.name, bit-8*r.from)
			continue
		}
		require.Equal(e.t, e.blocks[key], got, "%s: %s, bit %d", key, r.name, bit-8*r.from)
	}
	st := e.s.Stats()
	require.Equal(e.t, []uint64{r.spoiled, r.damaged, r.scanned}, []uint64{st.Spoiled, st.Damaged, st.Scanned},
		"%s, bit %d", r.name, bit-8*r.from)
}
