package blocks

import (
	"math/rand/v2"

	"github.com/stretchr/testify/assert"

	"github.com/moewire/moewire/core/store/client"
)

// worker calls a server for keys that no other worker uses.
type worker struct {
	r      *killRun
	c      *client.Client
	rng    *rand.Rand
	keys   []*known
	lossy  bool
	failed int // calls that failed, of which a dead server answers none
}

func (w *worker) step() {
	k := w.keys[w.rng.IntN(len(w.keys))]
	switch n := w.rng.IntN(20); {
	case n == 0:
		w.flush()
	case k.resting:
		w.failed++
	case n < 11:
		w.put(k)
	case n < 14:
		w.delete(k)
	default:
		w.get(k)
	}
}

func (w *worker) count(what int, ok bool) {
	if ok {
		w.r.done[what].Add(1)
	}
}

// put puts a version: a new one, the one that is there, or one that conflicts.
func (w *worker) put(k *known) {
	version, is := k.certain()
	if !is || version == 0 || w.rng.IntN(4) == 0 {
		k.latest++
		version = k.latest
	}
	ok, err := w.c.Put([]byte(k.name), k.payload(version, w.r.most), nil)
	assert.NoError(w.r.t, err)
	if there, is := k.certain(); !ok && is && there != 0 && !w.r.evicts {
		return // a conflict, or no server: the block that is there stays
	}
	w.count(puts, ok)
	k.wasPut(version, ok)
}

func (w *worker) delete(k *known) {
	n, err := w.c.Delete([][]byte{[]byte(k.name)})
	assert.NoError(w.r.t, err)
	if there, is := k.certain(); is && there == 0 && !w.r.evicts {
		assert.Zero(w.r.t, n, k.name)
		return
	}
	w.count(deletes, n == 1)
	k.wasDeleted(n == 1, w.lossy)
}

// get compares bytes. A miss says nothing: the server may be dead.
func (w *worker) get(k *known) {
	got, err := w.c.Get([]byte(k.name))
	assert.NoError(w.r.t, err)
	w.count(hits, got != nil)
	if got == nil {
		return
	}
	version := k.versionOf(got, w.r.most)
	assert.True(w.r.t, k.may[version], "%s is version %d of %d (-1: other bytes); %+v", k.name, version, k.latest, *k)
}

func (w *worker) flush() {
	if w.c.Flush(testTimeout) != nil {
		w.failed++
		return
	}
	w.count(flushes, true)
	for _, k := range w.keys {
		k.wasFlushed()
	}
}
