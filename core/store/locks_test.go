package store

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// gate holds the calls of a disk for which is is true, until it is opened.
type gate struct {
	arrived, opened chan struct{}
	first, last     sync.Once
}

func newGate(d *disk, is func(op string) bool) *gate {
	g := &gate{arrived: make(chan struct{}), opened: make(chan struct{})}
	d.calls(func(op string) {
		select {
		case <-g.opened:
			return
		default:
		}
		if is(op) {
			g.first.Do(func() { close(g.arrived) })
			<-g.opened
		}
	})
	return g
}

func (g *gate) open() { g.last.Do(func() { close(g.opened) }) }

// reclaims reports whether the caller is a goroutine that reclaims a segment.
func reclaims() bool { return strings.Contains(string(debug.Stack()), "(*Store).reclaim(") }

// ends fails the test if f does not end, which a lock that is held makes it do.
func ends(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { f(); close(done) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		require.Fail(t, what+" waits for the disk")
	}
}

func (w *world) free() int {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.numFree()
}

// TestReclaimingHoldsNoLock: while the disk does not answer the goroutine that reclaims a segment, blocks of others are read,
// written and deleted.
func TestReclaimingHoldsNoLock(t *testing.T) {
	d := newDisk(1<<16, aheadSegments+8)
	g := newGate(d, func(op string) bool { return op == "sync" && reclaims() })
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	last, stopped := "", make(chan struct{})
	var full atomic.Bool
	one := w.another(1)
	go func() {
		defer close(stopped)
		waited := false
		for i := 0; i < 2000 && !full.Load(); i++ {
			key := fmt.Sprint("key", i)
			if one.put(key, "", payload(key, 1, 3000)) == nil {
				last = key
			}
			if w.free() <= forPut && !waited { // the segment that was opened is not filled before one is reclaimed
				select {
				case <-g.arrived:
					return
				case <-time.After(5 * time.Second):
				}
				waited = true
			}
		}
	}()
	<-g.arrived
	full.Store(true)
	defer g.open()
	ends(t, "a put", func() { <-stopped })
	ends(t, "another put", func() { require.NoError(t, w.put("small", "", payload("small", 1, 10))) })
	ends(t, "a get", func() { require.Equal(t, payload(last, 1, 3000), w.get(last)) })
	ends(t, "a delete", func() { require.True(t, w.delete(last)) })
	ends(t, "the stats", func() { w.s.Stats() })
}

// TestPutsOfOtherKeys: while the disk does not answer the put of one key, others are written, whatever their hashes are.
func TestPutsOfOtherKeys(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("first", "", nil)) // the segment is open
	var slow atomic.Bool
	slow.Store(true)
	g := newGate(d, func(op string) bool { return op == "write" && slow.Swap(false) })
	var writing sync.WaitGroup
	one := w.another(1)
	writing.Go(func() { require.NoError(t, one.put("slow", "", payload("slow", 1, 100))) })
	<-g.arrived
	ends(t, "a put", func() {
		for i := range 300 {
			require.NoError(t, w.put(fmt.Sprint("k", i%8, i), "", nil))
			w.delete(fmt.Sprint("k", i%8, i))
		}
	})
	g.open()
	writing.Wait()
	require.Equal(t, payload("slow", 1, 100), w.get("slow"))
}

// TestFlushesWaitTogether: calls of Flush that miss their deadline leave no goroutine behind, and one flush serves all that wait.
func TestFlushesWaitTogether(t *testing.T) {
	d := newDisk(1<<16, 8)
	g := newGate(d, func(op string) bool { return op == "sync" })
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	defer g.open()
	require.Error(t, w.s.Flush(time.Now()))
	<-g.arrived
	before := runtime.NumGoroutine()
	for range 200 {
		require.ErrorContains(t, w.s.Flush(time.Now()), "deadline")
	}
	require.Less(t, runtime.NumGoroutine(), before+20)
	var waiting sync.WaitGroup
	for range 50 {
		waiting.Go(func() { require.NoError(t, w.flush()) })
	}
	require.NoError(t, w.put("b", "", payload("b", 1, 100)))
	g.open()
	waiting.Wait()
	require.NoError(t, w.flush())
	require.Empty(t, d.touched)
	require.Less(t, w.s.Stats().Flushes, uint64(20))
}

// TestFlushIsForWhatCameBefore: a flush that runs already does not serve a call that came later.
func TestFlushIsForWhatCameBefore(t *testing.T) {
	d := newDisk(1<<16, 8)
	g := newGate(d, func(op string) bool { return op == "synced" })
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	defer g.open()
	require.NoError(t, w.put("a", "", payload("a", 1, 100)))
	var first sync.WaitGroup
	first.Go(func() { require.NoError(t, w.flush()) })
	<-g.arrived
	require.NoError(t, w.put("b", "", payload("b", 1, 100)))
	later := w.s.flusher.join()
	g.open()
	<-later.done
	require.NoError(t, later.err)
	first.Wait()
	require.Empty(t, d.touched)
}
