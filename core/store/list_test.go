package store

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/index"
)

// listed are all keys that a prefix has, by pages.
func (w *world) listed(prefix string, n int) (keys map[string]int, pages int) {
	keys = map[string]int{}
	for cursor := uint64(0); ; {
		page, next := w.s.List(w.ns, []byte(prefix), cursor, n)
		require.LessOrEqual(w.t, len(page), n)
		for _, key := range page {
			keys[string(key)]++
		}
		pages++
		if cursor = next; cursor == 0 {
			return keys, pages
		}
	}
}

// TestList compares pages of any size with what was put.
func TestList(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newDisk(1<<20, 8), Config{Durability: FlushNone, FlushEvery: time.Hour})
	want := map[string]map[string]int{"": {}, "a": {}, "ab": {}, "nothing": {}}
	for i := range 200 {
		key := fmt.Sprint([]string{"a", "b", "ab"}[i%3], i)
		require.NoError(t, w.put(key, "", payload(key, 1, 10)))
		for prefix, keys := range want {
			if len(prefix) <= len(key) && key[:len(prefix)] == prefix {
				keys[key] = 1
			}
		}
	}
	for prefix, keys := range want {
		for _, n := range []int{1, 7, 1000} {
			got, _ := w.listed(prefix, n)
			require.Equal(t, keys, got, "%q by %d", prefix, n)
		}
	}
}

// TestListIsBounded: no call looks at more blocks, nor reads more records, than its bounds, though no key fits; the cursor gets to
// the end all the same.
func TestListIsBounded(t *testing.T) {
	d := newDisk(1<<20, 16)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	const numBlocks = 3 * listReads
	for i := range numBlocks {
		key := fmt.Sprint("key", i)
		require.NoError(t, w.put(key, "", nil))
	}
	var reads atomic.Int64
	d.calls(func(op string) {
		if op == "read" {
			reads.Add(1)
		}
	})
	pages := func() (n int) {
		for cursor := uint64(0); ; {
			reads.Store(0)
			keys, next := w.s.List(w.ns, []byte("z"), cursor, 10)
			require.Empty(t, keys)
			require.LessOrEqual(t, reads.Load(), int64(listReads))
			n++
			if cursor = next; cursor == 0 {
				return n
			}
		}
	}
	require.Equal(t, 3, pages())
	other, err := w.s.Namespace(digestOf("other"), "other")
	require.NoError(t, err)
	for i := range 3 * listBlocks { // blocks of others cost no read
		h := w.s.secret.Hash(&w.digest, fmt.Appendf(nil, "other%d", i))
		w.s.index.Put(index.Block{Hash: h, Namespace: uint16(other), KeyBytes: 20})
	}
	require.GreaterOrEqual(t, pages(), 4)
	w.s.index.Each(func(b *index.Block) {
		if b.Namespace == uint16(other) {
			w.s.index.Change(b.Hash, func(*index.Block) bool { return false })
		}
	})
}

// TestListAnyCursor: a cursor that a client has made up ends.
func TestListAnyCursor(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), newDisk(1<<16, 8), Config{})
	require.NoError(t, w.put("a", "", nil))
	for range 1000 {
		keys, _ := w.s.List(w.ns, nil, w.rng.Uint64()>>w.rng.IntN(64), 1+w.rng.IntN(3))
		require.LessOrEqual(t, len(keys), 1)
	}
	_, next := w.s.List(w.ns+1, nil, 0, 1)
	require.Zero(t, next)
}
