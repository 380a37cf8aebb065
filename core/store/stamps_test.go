package store

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// putChain puts a chain of so many blocks, heads first, and returns its keys. Blocks that are there already stay.
func (w *world) putChain(name string, num int) (keys [][]byte) {
	parent := ""
	for i := range num {
		key := fmt.Sprint(name, "-", i)
		if err := w.put(key, parent, payload(key, 1, 100)); !errors.Is(err, ErrExists) {
			require.NoError(w.t, err)
		}
		keys, parent = append(keys, []byte(key)), key
	}
	return keys
}

// ordered holds chains to be older than those before them, and each of their blocks than the one before it.
func (w *world) ordered(chains ...[][]byte) {
	last := ^uint64(0)
	for _, keys := range chains {
		for _, key := range keys {
			b, found := w.s.index.Get(w.s.secret.Hash(&w.digest, key))
			require.True(w.t, found)
			require.Less(w.t, b.Stamp, last, "%s", key)
			last = b.Stamp
		}
	}
}

// TestStampsOfChains: the blocks of a chain that is put are the older the further behind, and older than those of chains that were
// used since: when they are put, when they are put again, when a chain that was got goes on, and after a start.
func TestStampsOfChains(t *testing.T) {
	d := newDisk(1<<20, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	a, b, c := w.putChain("a", 50), w.putChain("b", 50), w.putChain("c", 50)
	w.ordered(c, b, a)
	image := d.killed()
	w.putChain("b", 50)
	w.ordered(b, c, a)
	leases := make([]Lease, len(a))
	require.Equal(t, len(a), w.s.Acquire(w.ns, a, leases))
	for i := range leases {
		leases[i].Release()
	}
	require.NoError(t, w.put("more of a", string(a[len(a)-1]), nil))
	w.ordered(append(a, []byte("more of a")), b, c)
	w.s.stop()
	w.open(image)
	w.ordered(c, b, a)
}

// Stamps do not come to an end below the first chain, and a block of a parent that was not used for long is new.
func TestStampsOfLongChains(t *testing.T) {
	w := memory(t)
	keys := w.putChain("long", chainRoom+100)
	w.ordered(keys)
	for range chainUses {
		w.putChain("other", 1)
	}
	require.NoError(t, w.put("new", string(keys[0]), nil))
	w.ordered([][]byte{[]byte("new"), []byte("other-0")}, keys)
}

// TestTailsGoFirstOfPuts: of chains that are put at the same time, and neither read nor touched, the newest ones stay whole.
func TestTailsGoFirstOfPuts(t *testing.T) {
	w := newWorld(t, testenv.Seed(t), inMemory{newDisk(1<<17, 16)}, Config{})
	const numChains, num = 20, 15
	chains := make([][][]byte, numChains)
	for i := range num {
		for c := range chains {
			key, parent := fmt.Append(nil, c, " ", i), []byte{}
			if i > 0 {
				parent = chains[c][i-1]
			}
			require.NoError(t, w.put(string(key), string(parent), payload(string(key), 1, 7000)))
			chains[c] = append(chains[c], key)
		}
	}
	require.NotZero(t, w.s.Stats().EvictedCold)
	for _, keys := range chains[numChains/2:] {
		require.Equal(t, num, w.s.Exists(w.ns, keys, make([]bool, num)), "%s", keys[0])
	}
}

// TestQuotaTakesTails: what a quota leaves of a chain is its beginning.
func TestQuotaTakesTails(t *testing.T) {
	w := memory(t)
	w.setQuotas(map[[16]byte]int64{w.digest.Tenant(): 55 * page})
	for chain := range 20 {
		w.putChain(fmt.Sprint("chain", chain), 10)
	}
	for chain := range 20 {
		var keys [][]byte
		for i := range 10 {
			keys = append(keys, fmt.Append(nil, "chain", chain, "-", i))
		}
		want := 0
		switch {
		case chain == 14:
			want = 5
		case chain > 14:
			want = 10
		}
		found := make([]bool, 10)
		require.Equal(t, want, w.s.Exists(w.ns, keys, found), chain)
		require.NotContains(t, found[want:], true)
	}
}
