package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/record"
)

// TestDiskFails runs random calls while writes, reads and syncs fail, some of them half way, and ends the store
// without power again and again. Blocks may be missing, and are never wrong; what was deleted and flushed stays away.
func TestDiskFails(t *testing.T) {
	for seed := range testenv.NumSeeds(t, 6) {
		d := newDisk(1<<16, 12)
		w := newWorld(t, testenv.Seed(t)+seed, d, Config{Durability: FlushNone})
		m := newModel(w, false)
		for range 12 {
			faults := rand.New(rand.NewPCG(m.rng.Uint64(), 1))
			rate := faults.Float64() * 0.2
			d.fails(func(string) (float64, error) {
				if faults.Float64() < rate {
					return faults.Float64(), errDisk
				}
				return 1, nil
			})
			m.fails = true
			for range 80 {
				m.step()
			}
			m.fails = false
			d.fails(nil)
			if m.rng.IntN(2) == 0 { // else the disk dies with segments in doubt
				m.settles()
				for key, k := range m.keys {
					m.look(key, k)
				}
				m.accounts()
			}
			d = d.crash(m.rng)
			m.again(d, true)
		}
	}
}

// settles waits until no segment is in doubt, so that no block is lost any more.
func (m *model) settles() {
	err := m.flush()
	for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		err = m.flush()
	}
	require.NoError(m.t, err)
	m.flushedAll()
}

// TestFullDisk: a put that the disk has no room for is refused, those before it stay, and room made by hand is used again.
func TestFullDisk(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{})
	require.NoError(t, w.put("first", "", payload("first", 1, 9000)))
	full := fmt.Errorf("no space left on device")
	d.fails(func(op string) (float64, error) {
		if op == "write" {
			return 0.5, full
		}
		return 1, nil
	})
	for i := range 20 {
		err := w.put(fmt.Sprint("refused", i), "", payload("x", 1, 9000))
		require.ErrorIs(t, err, ErrFull)
		require.ErrorIs(t, err, full)
		require.False(t, w.has(fmt.Sprint("refused", i)))
	}
	require.Equal(t, payload("first", 1, 9000), w.get("first"))
	d.fails(nil)
	w.s.mu.Lock()
	for i := range w.s.segments {
		w.s.segments[i].lost = time.Time{} // retryLost is over
	}
	w.s.mu.Unlock()
	require.NoError(t, w.put("later", "", payload("later", 1, 9000)))
	require.NotZero(t, w.s.Stats().WriteErrors)
}

// TestConcurrentCalls: many readers and writers of the same keys, in a store that evicts all the while.
func TestConcurrentCalls(t *testing.T) {
	for name, disks := range map[string]bool{"memory": false, "disk": true} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(1<<16, 8)
			w := newWorld(t, testenv.Seed(t), d, Config{FlushEvery: time.Millisecond})
			if !disks {
				require.NoError(t, w.s.Close())
				w.open(inMemory{d})
			}
			var all sync.WaitGroup
			for worker := range 6 {
				all.Go(func() { w.another(uint64(worker)).churn(400) })
			}
			all.Wait()
			w.accounts()
			for i := range w.s.segments {
				require.Zero(t, w.s.segments[i].refs.Load())
				require.Zero(t, w.s.segments[i].pending)
			}
			require.NotZero(t, w.s.Stats().SegmentsReclaimed)
		})
	}
}

// another is the same world for another goroutine.
func (w *world) another(n uint64) *world {
	other := *w
	other.rng = rand.New(rand.NewPCG(testenv.Seed(w.t), n))
	other.tagger = w.tagger.Clone()
	return &other
}

func (w *world) churn(steps int) {
	for range steps {
		key := fmt.Sprint("key", w.rng.IntN(50))
		switch w.rng.IntN(5) {
		case 0, 1:
			err := w.put(key, "", payload(key, 1, 4000+10*len(key)))
			require.True(w.t, err == nil || errors.Is(err, ErrExists) || errors.Is(err, ErrFull), "%v", err)
		case 2:
			w.delete(key)
		default:
			if got := w.get(key); got != nil {
				require.Equal(w.t, payload(key, 1, 4000+10*len(key)), got)
			}
		}
	}
}

// TestTwoPutsOfAKey: of two puts of a key with other bytes one is a conflict. Killed at any write, a store finds the block
// that was committed, never the other one's record.
func TestTwoPutsOfAKey(t *testing.T) {
	type image struct {
		disk      *disk
		key       string
		committed int
	}
	d := newDisk(1<<16, 16)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	var mu sync.Mutex
	var images []image
	key, committed := "", 0
	d.fails(func(op string) (float64, error) {
		time.Sleep(300 * time.Microsecond) // the other put gets as far as it may
		mu.Lock()
		defer mu.Unlock()
		if op == "write" && committed != 0 {
			images = append(images, image{d.like(d.data), key, committed})
		}
		return 1, nil
	})
	for i := range 30 {
		mu.Lock()
		key, committed = fmt.Sprint("key", i), 0
		mu.Unlock()
		var both sync.WaitGroup
		for version := 1; version <= 2; version++ {
			one := w.another(uint64(version))
			both.Go(func() {
				if err := one.put(key, "", payload(key, version, 3000)); err == nil {
					mu.Lock()
					committed = version
					mu.Unlock()
				}
			})
		}
		both.Wait()
		require.NotZero(t, committed)
	}
	d.fails(nil)
	w.s.stop()
	for _, im := range images {
		w.open(im.disk)
		if got := w.get(im.key); got != nil {
			require.Equal(t, payload(im.key, im.committed, 3000), got)
		}
		w.s.stop()
	}
	w.open(d.killed())
}

// TestFooterWithoutAPage: the power is cut while a footer is written, and any one page is lost. What was flushed before is there.
func TestFooterWithoutAPage(t *testing.T) {
	d := newDisk(1<<20, 5)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	const numBlocks = 72 // so that the footer has a page of marks alone
	for i := range numBlocks {
		key := fmt.Sprint("key", i)
		require.NoError(t, w.put(key, "", payload(key, 1, 50)))
	}
	require.NoError(t, w.flush())
	var images []*disk
	d.fails(func(op string) (float64, error) {
		if op == "sync" {
			for lost := range d.touched {
				im := d.like(d.data)
				off := lost[1] * record.PageBytes
				copy(im.data[lost[0]][off:off+record.PageBytes], d.durable[lost[0]][off:])
				images = append(images, im)
			}
		}
		return 1, nil
	})
	require.NoError(t, w.s.sealAllOpen())
	d.fails(nil)
	w.s.stop()
	require.NotEmpty(t, images)
	for _, im := range images {
		w.open(im)
		for i := range numBlocks {
			require.True(t, w.has(fmt.Sprint("key", i)), "key %d", i)
		}
		w.s.stop()
	}
	w.open(d.killed())
}
