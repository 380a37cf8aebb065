package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/index"
)

// removed are keys of which a test knows whether they were deleted, and the delete was flushed.
type removed struct {
	*world
	versions []int  // the last one that was written
	flushed  []bool // deleted, flushed, and not written again since
}

func (r *removed) name(i int) string { return fmt.Sprint("mine", i) }

func (r *removed) step() {
	i := r.rng.IntN(len(r.versions))
	key := r.name(i)
	switch r.rng.IntN(4) {
	case 0: // deleted for good
		r.delete(key)
		if r.flush() == nil {
			r.flushed[i] = true
		}
	case 1:
		r.s.Touch(r.ns, [][]byte{[]byte(key)}) // hot blocks are moved
	default:
		r.flushed[i] = false
		if !r.has(key) {
			r.versions[i]++
		}
		_ = r.put(key, "", payload(key, r.versions[i], 3000))
	}
}

// check opens an image. What was deleted before a flush is not there, nor any bytes that were never written.
func (r *removed) check(image *disk) {
	one := *r.world
	one.open(image)
	defer one.s.stop()
	for i, version := range r.versions {
		require.False(r.t, r.flushed[i] && one.has(r.name(i)), "%s was deleted, flushed, and is there", r.name(i))
		got := one.get(r.name(i)) // which removes a block with wrong bytes
		if got == nil {
			continue
		}
		known := false
		for v := range version + 1 {
			known = known || bytes.Equal(got, payload(r.name(i), v, 3000))
		}
		require.True(r.t, known, "%s has wrong bytes", r.name(i))
	}
}

// TestEndsWhileMoving ends the store, killed or without power, while other puts have segments reclaimed.
func TestEndsWhileMoving(t *testing.T) {
	for seed := range testenv.NumSeeds(t, 4) {
		d := newDisk(1<<16, 8)
		w := newWorld(t, testenv.Seed(t)+seed, d, Config{Durability: FlushNone, FlushEvery: time.Hour})
		d.calls(func(string) { time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) })
		var stop atomic.Bool
		var other sync.WaitGroup
		one := w.another(seed + 100)
		other.Go(func() {
			for i := 0; !stop.Load(); i++ {
				key := fmt.Sprint("other", i)
				_ = one.put(key, "", payload(key, 1, one.rng.IntN(9000)))
			}
		})
		r := &removed{world: w, versions: make([]int, 16), flushed: make([]bool, 16)}
		for step := range 200 {
			if r.step(); step%3 == 0 {
				r.check(d.crash(r.rng))
				r.check(d.killed())
			}
		}
		stop.Store(true)
		other.Wait()
		require.NotZero(t, w.s.Stats().MovedBytes)
	}
}

// TestDeletedWhileCopied: a block that stays and one that is evicted are deleted and the deletes flushed, at each call of the disk while their
// segment is being emptied. Neither a kill nor a power cut then brings one back.
func TestDeletedWhileCopied(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 5
	}
	for at := 0; at < 24; at += step {
		d := newDisk(1<<16, 8)
		w := newWorld(t, testenv.Seed(t)+uint64(at), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
		require.NoError(t, w.put("cold", "", payload("cold", 1, 100)))
		const hot = 3
		for i := range hot {
			key := fmt.Sprint("hot", i)
			require.NoError(t, w.put(key, "", payload(key, 1, 3000)))
		}
		pinned := make([]bool, hot)
		require.Equal(t, hot, w.s.Pin(w.ns, [][]byte{[]byte("hot0"), []byte("hot1"), []byte("hot2")}, time.Now().Add(time.Hour), pinned))
		w.deleteDuringReclaim(d, at)
	}
}

// deleteDuringReclaim deletes a pinned block at the nth call of the disk of a goroutine that reclaims, and looks at what is left
// if the store ends at a later one.
func (w *world) deleteDuringReclaim(d *disk, nth int) {
	calls, deleting := 0, make(chan struct{})
	var images []*disk
	d.calls(func(string) {
		if !reclaims() {
			return
		}
		if calls++; calls == nth+1 {
			one := w.another(1)
			go func() {
				defer close(deleting)
				one.delete("hot1")
				one.delete("cold")
				require.NoError(w.t, w.flush())
			}()
		}
		if calls > nth {
			select { // it may wait for this call
			case <-deleting:
				images = append(images, d.ends()...)
			case <-time.After(2 * time.Millisecond):
			}
		}
	})
	for i := 0; calls <= nth+8 && i < 150; i++ {
		key := fmt.Sprint("other", i)
		_ = w.put(key, "", payload(key, 1, 5000))
	}
	require.Greater(w.t, calls, nth)
	<-deleting
	d.calls(func(string) {})
	for _, image := range append(images, d.ends()...) {
		one := *w
		one.open(image)
		require.False(w.t, one.has("hot1"), "it was deleted and flushed before call %d", nth)
		require.False(w.t, one.has("cold"), "it was evicted or deleted, and flushed, before call %d", nth)
		for i := range 30 { // there is room to move blocks to
			require.NoError(w.t, one.put(fmt.Sprint("later", i), "", payload("x", 1, 5000)))
		}
		one.s.stop()
	}
}

// ends are what a kill leaves, and a power cut that loses all that was not flushed.
func (d *disk) ends() []*disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []*disk{d.like(d.data), d.like(d.durable)}
}

// TestEvictedLeaveNothing: a block was moved out of a segment that then stayed. Once it is evicted from its new place, too, and its
// key was written again, the first record is not found by the next start.
func TestEvictedLeaveNothing(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("key", "", payload("key", 1, 100)))
	require.NoError(t, w.s.sealAllOpen())
	b, _ := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte("key")))
	w.s.segments[b.Segment].refs.Add(1) // as a lease does: the segment is not reclaimed
	require.True(t, w.s.move(&b))
	evict := func() {
		w.s.index.Change(b.Hash, func(now *index.Block) bool { now.Stamp = 0; return true })
		w.fill(200)
		require.False(t, w.has("key"))
	}
	evict()
	require.NoError(t, w.put("key", "", payload("key", 2, 100)))
	evict()
	w.s.segments[b.Segment].refs.Add(-1)
	require.NoError(t, w.flush())
	image := d.killed()
	w.s.stop()
	w.open(image)
	require.Nil(t, w.get("key"))
}

// TestFlushWaitsForDeletes: a client that is told that a block is not there, and flushes, does not find it after a power cut,
// though the delete of another client is still being written.
func TestFlushWaitsForDeletes(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	require.NoError(t, w.flush())
	g := newGate(d, func(op string) bool { return op == "write" })
	defer g.open()
	var deleting sync.WaitGroup
	one := w.another(1)
	deleting.Go(func() { one.delete("a") })
	<-g.arrived
	require.False(t, w.delete("a"))
	if w.s.Flush(time.Now().Add(50*time.Millisecond)) == nil {
		for _, image := range d.ends() {
			other := *w
			other.open(image)
			require.False(t, other.has("a"), "it was deleted, and flushed")
			other.s.stop()
		}
	}
	g.open()
	require.NoError(t, w.flush())
	deleting.Wait()
}

// TestFlushHasWhatIsVisible: a block that is visible is on the disk after a flush, though its put has not returned.
func TestFlushHasWhatIsVisible(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("first", "", nil)) // the segment is open
	require.NoError(t, w.flush())
	g := newGate(d, func(op string) bool { return op == "write" })
	var putting sync.WaitGroup
	one := w.another(1)
	putting.Go(func() { require.NoError(t, one.put("a", "", payload("a", 1, 100))) })
	<-g.arrived
	w.s.mu.Lock() // the put does not get to its end
	g.open()
	ends(t, "a put", func() {
		for !w.has("a") {
			time.Sleep(time.Millisecond)
		}
	})
	err := w.flush()
	w.s.mu.Unlock()
	putting.Wait()
	require.NoError(t, err)
	require.Empty(t, d.touched)
}
