package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// TestFailingDiskKeepsItsBlocks: a disk that flushes no more, or writes no more, refuses puts and keeps all blocks that are there.
func TestFailingDiskKeepsItsBlocks(t *testing.T) {
	for _, what := range []string{"sync", "write"} {
		t.Run(what, func(t *testing.T) {
			d := newDisk(1<<16, 40)
			w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
			w.fill(600)
			require.NoError(t, w.s.sealAllOpen())
			ends(t, "the reclaiming ahead", w.awaitFree)
			before := w.keys()
			d.fails(func(op string) (float64, error) {
				if op == what {
					return 0, errDisk
				}
				return 1, nil
			})
			var refused []error
			for i := range 100 {
				if err := w.put(fmt.Sprint("more", i), "", payload("x", 1, 9000)); err != nil {
					refused = append(refused, err)
				}
			}
			require.NotEmpty(t, refused)
			require.ErrorIs(t, refused[len(refused)-1], ErrFull)
			require.ErrorIs(t, refused[len(refused)-1], errDisk)
			for _, key := range before {
				require.Equal(t, payload(key, 1, 5000), w.get(key))
			}
			d.fails(nil)
			w.retrySoon()
			w.fill(100)
		})
	}
}

// keys are those of all blocks.
func (w *world) keys() (keys []string) {
	list, cursor := [][]byte(nil), uint64(0)
	for {
		if list, cursor = w.s.List(w.ns, nil, cursor, 1000); len(list) > 0 {
			for _, key := range list {
				keys = append(keys, string(key))
			}
		}
		if cursor == 0 {
			return keys
		}
	}
}

// awaitFree waits until no segment is being reclaimed ahead.
func (w *world) awaitFree() {
	for {
		w.s.mu.Lock()
		quiet := !w.s.reclaiming && w.s.numFree() > forPut
		w.s.mu.Unlock()
		if quiet {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// retrySoon ends the time after which a segment is tried again.
func (w *world) retrySoon() {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.wet.failedAt = time.Time{}
	for i := range w.s.segments {
		w.s.segments[i].lost = time.Time{}
	}
}

// TestStartingIsWaitedFor: while another call opens a segment no hot block is evicted for want of one.
func TestStartingIsWaitedFor(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	w.s.mu.Lock()
	g := newGate(d, func(op string) bool { return op == "write" })
	defer g.open()
	var starting, asking sync.WaitGroup
	starting.Go(func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.tryStart(w.s.freeSegment())
	})
	w.s.mu.Unlock()
	<-g.arrived
	can, asked := false, make(chan struct{})
	asking.Go(func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		can = w.s.canMove()
		close(asked)
	})
	select {
	case <-asked: // too early
	case <-time.After(20 * time.Millisecond):
	}
	g.open()
	starting.Wait()
	asking.Wait()
	require.True(t, can)
}
