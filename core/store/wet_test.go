package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
)

// promised are keys of which a test knows what a flush has made certain.
type promised struct {
	*world
	versions []int // the latest of each key
	certain  []int // the version that is there, 0: none is; -1: either may be
}

func (p *promised) name(i int) string { return fmt.Sprint("key", i) }

func (p *promised) step() {
	i := p.rng.IntN(len(p.versions))
	switch op := p.rng.IntN(8); {
	case op == 0:
		p.delete(p.name(i))
		p.certain[i] = -1
	case op == 1 && p.flush() == nil:
		for i := range p.certain {
			if p.certain[i] = 0; p.has(p.name(i)) {
				p.certain[i] = p.versions[i]
			}
		}
	case op > 2 && !p.has(p.name(i)):
		p.versions[i]++
		_ = p.put(p.name(i), "", payload(p.name(i), p.versions[i], 3000))
		p.certain[i] = -1
	}
}

// cut opens what a power cut leaves. What a flush has made certain holds, but for what was dropped since.
func (p *promised) cut(d *disk) *disk {
	had := make([]bool, len(p.versions))
	for i := range had {
		had[i] = p.has(p.name(i))
	}
	d = d.crash(p.rng)
	p.s.stop()
	p.open(d)
	for i, certain := range p.certain {
		got, name := p.get(p.name(i)), p.name(i)
		if certain == 0 {
			require.Nil(p.t, got, "%s was deleted, flushed, and is there", name)
		}
		if want := payload(name, certain, 3000); certain > 0 && had[i] {
			require.True(p.t, bytes.Equal(want, got), "%s was flushed; there are %d bytes", name, len(got))
		}
		p.certain[i], p.versions[i] = -1, p.versionOf(name, got, p.versions[i])
	}
	return d
}

// versionOf is that of a block which is there, or the latest.
func (p *promised) versionOf(name string, got []byte, latest int) int {
	if got == nil {
		return latest
	}
	for v := range latest + 1 {
		if bytes.Equal(payload(name, v, 3000), got) {
			return v
		}
	}
	require.Failf(p.t, "wrong bytes", "%s", name)
	return 0
}

// TestFailedFlushes: flushes fail, and lose what was written, at random. Those that succeed later are good for all that is there, and
// for all that is not.
func TestFailedFlushes(t *testing.T) {
	for seed := range testenv.NumSeeds(t, 8) {
		d := newDisk(1<<16, 8+int(seed%2)*24)
		d.forgets = true
		w := newWorld(t, testenv.Seed(t)+seed, d, Config{Durability: FlushNone, FlushEvery: time.Hour})
		p := &promised{w, make([]int, 24), make([]int, 24)}
		faults, dropped := rand.New(rand.NewPCG(testenv.Seed(t), seed)), uint64(0)
		for range 6 {
			d.fails(func(op string) (float64, error) {
				if op == "sync" && faults.IntN(4) == 0 {
					return 0, errDisk
				}
				return 1, nil
			})
			for range 150 {
				p.step()
			}
			d.fails(nil)
			dropped += p.s.Stats().EvictedDoubted
			d = p.cut(d)
			p.accounts()
		}
		require.NotZero(t, dropped)
	}
}

// flushSoon flushes, as soon as no segment in doubt is being sealed.
func (w *world) flushSoon() {
	require.Eventually(w.t, func() bool { return w.flush() == nil }, time.Minute, time.Millisecond)
}

// TestStoreGoesOnAfterAFailedFlush: what was on the disk before stays, what was not is dropped, and puts and flushes succeed again.
func TestStoreGoesOnAfterAFailedFlush(t *testing.T) {
	d, said := newDisk(1<<16, 8), &lines{}
	d.forgets = true
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour, Log: said.add})
	require.NoError(t, w.put("old", "", payload("old", 1, 3000)))
	require.NoError(t, w.s.sealAllOpen())
	require.NoError(t, w.put("new", "", payload("new", 1, 3000)))
	d.fails(syncsFail)
	for range 2 {
		require.ErrorIs(t, w.flush(), errDisk)
		err := w.put("refused", "", payload("refused", 1, 3000))
		require.ErrorIs(t, err, ErrFull)
		require.ErrorIs(t, err, errDisk)
		require.True(t, w.has("new"), "nothing is dropped as long as flushes fail")
		w.retrySoon()
	}
	d.fails(nil)
	for w.put("next", "", payload("next", 1, 3000)) != nil { // it flushes
		w.retrySoon()
	}
	require.NoError(t, w.flush())
	require.Equal(t, []bool{true, false, true}, []bool{w.has("old"), w.has("new"), w.has("next")})
	require.EqualValues(t, 1, w.s.Stats().EvictedDoubted)
	require.Contains(t, said.all, "a flush has failed: 1 blocks that it may have lost are dropped")
	w.fill(100)
	require.NoError(t, w.flush())
	require.NotZero(t, w.s.Stats().EvictedCold)
	w.accounts()
}

// TestMovedBlocksGoBack: a flush fails that was to be good for a block that was moved. It is read where it was before.
func TestMovedBlocksGoBack(t *testing.T) {
	d := newDisk(1<<16, 8)
	d.forgets = true
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	want := payload("key", 1, 3000)
	require.NoError(t, w.put("key", "", want))
	require.NoError(t, w.s.sealAllOpen())
	b, _ := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte("key")))
	require.True(t, w.s.move(&b))
	d.fails(syncsFail)
	require.ErrorIs(t, w.flush(), errDisk)
	d.fails(nil)
	w.flushSoon()
	require.Equal(t, want, w.get("key"))
	require.Zero(t, w.s.Stats().EvictedDoubted)
	w.accounts()
	w.s.stop()
	w.open(d.crash(w.rng))
	require.Equal(t, want, w.get("key"))
}

// TestOnlyTheBlockItselfGoesBack: a block that was moved to a segment in doubt is deleted while it is to go back, and put again. What it
// was moved from is made none: it must not be there once the other one is deleted.
func TestOnlyTheBlockItselfGoesBack(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("key", "", payload("key", 1, 3000)))
	require.NoError(t, w.s.sealAllOpen())
	h := w.s.secret.Hash(&w.digest, []byte("key"))
	b, _ := w.s.index.Get(h)
	require.True(t, w.s.move(&b))
	moved, _ := w.s.index.Get(h)
	other := moved
	other.Off += 8 // where it was before it was put again
	require.False(t, w.s.goBack(&other))
	now, _ := w.s.index.Get(h)
	require.Equal(t, moved, now)
	require.True(t, w.delete("key"))
	require.NoError(t, w.flush())
	w.s.stop()
	w.open(d.killed())
	require.False(t, w.has("key"), "it was deleted and flushed")
}

// syncsFail is a disk that writes and does not flush.
func syncsFail(op string) (float64, error) {
	if op == "sync" {
		return 0, errDisk
	}
	return 1, nil
}

// TestFlushOfWhatIsInDoubt: while a segment in doubt cannot be given up, no flush says that all is well, nor does one for what lies
// there.
func TestFlushOfWhatIsInDoubt(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	reclaims := func(is bool) {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.reclaiming = is
	}
	require.NoError(t, w.put("key", "", payload("key", 1, 3000)))
	reclaims(true)
	d.fails(syncsFail)
	require.ErrorIs(t, w.flush(), errDisk)
	d.fails(nil)
	require.ErrorIs(t, w.flush(), errInDoubt)
	require.ErrorIs(t, w.s.syncWritten(0), errInDoubt)
	reclaims(false)
	w.flushSoon()
	require.NoError(t, w.s.syncWritten(0))
}

// TestNothingIsPutWhereAFlushHasFailed: a flush fails once the first page of a segment is written, before the segment is the open one.
// No put is acknowledged there: it would be dropped with the segment.
func TestNothingIsPutWhereAFlushHasFailed(t *testing.T) {
	d := newDisk(1<<16, 8)
	d.forgets = true
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	first, ended := &w.s.segments[0], make(chan error, 1)
	first.disk.Lock() // the put that starts the segment waits for it, behind its write
	put := func() error { return w.put("key", "", payload("key", 1, 3000)) }
	go func() { ended <- put() }()
	require.Eventually(t, func() bool { return first.wrote.Load() > 0 }, time.Minute, time.Millisecond)
	d.fails(syncsFail)
	require.ErrorIs(t, w.s.sync(0), errDisk)
	d.fails(nil)
	first.disk.Unlock()
	for err := <-ended; err != nil; err = put() {
		require.ErrorIs(t, err, errInDoubt)
		w.retrySoon()
	}
	b, _ := w.s.index.Get(w.s.secret.Hash(&w.digest, []byte("key")))
	require.False(t, w.s.isDoubted(int(b.Segment)))
	w.flushSoon()
	require.True(t, w.has("key"), "a put that was acknowledged stays")
	require.Zero(t, w.s.Stats().EvictedDoubted)
	w.accounts()
}

// TestPutsWaitForAFlushUntilTheirDeadline: puts that come while segments are in doubt, and the disk hangs.
func TestPutsWaitForAFlushUntilTheirDeadline(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("key", "", payload("key", 1, 3000)))
	d.fails(syncsFail)
	require.ErrorIs(t, w.flush(), errDisk)
	d.fails(nil)
	require.Eventually(t, func() bool { w.s.mu.Lock(); defer w.s.mu.Unlock(); return !w.s.has(stateFull) }, time.Minute, time.Millisecond)
	w.retrySoon()
	g := newGate(d, func(op string) bool { return op == "sync" })
	defer g.open()
	settle := func(wait time.Duration) error {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		return w.s.settleDoubts(time.Now().Add(wait))
	}
	patient, hasty := make(chan error, 1), make(chan error, 4)
	go func() { patient <- settle(time.Minute) }()
	<-g.arrived
	for range cap(hasty) {
		go func() { hasty <- settle(10 * time.Millisecond) }()
	}
	for range cap(hasty) {
		select {
		case err := <-hasty:
			require.ErrorIs(t, err, errInDoubt)
		case <-time.After(10 * time.Second):
			require.Fail(t, "a put waits for the disk")
		}
	}
	g.open()
	require.NoError(t, <-patient)
	require.False(t, w.has("key"))
	require.NoError(t, w.flush())
}

// TestWrittenDuringAFlush: what is written while the disk is flushed may be lost by the next one.
func TestWrittenDuringAFlush(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("key", "", nil))
	var once sync.Once
	d.calls(func(op string) {
		if op == "synced" {
			once.Do(func() { require.NoError(t, w.s.writeTo(0, 8*page, make([]byte, page))) })
		}
	})
	require.NoError(t, w.s.sync(0))
	d.fails(syncsFail)
	require.ErrorIs(t, w.s.sync(0), errDisk)
	require.ErrorIs(t, w.s.inDoubt(), errInDoubt)
	d.fails(nil)
	w.flushSoon()
}

// TestOneFlushForSeveralPuts: a put that has waited for another one's flush needs none of its own if that was good for both.
func TestOneFlushForSeveralPuts(t *testing.T) {
	d := newDisk(1<<16, 8)
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushNone, FlushEvery: time.Hour})
	require.NoError(t, w.put("key", "", nil))
	num := 0
	d.calls(func(op string) {
		if op == "sync" {
			num++
		}
	})
	require.NoError(t, w.s.syncWritten(0))
	require.NoError(t, w.s.syncWritten(0))
	require.Equal(t, 1, num)
	require.NoError(t, w.put("later", "", nil))
	require.NoError(t, w.s.syncWritten(0))
	require.Equal(t, 2, num)
}

// TestEachFlushedPutIsOnTheDisk: with a flush for each put, a put with a flush that has failed is refused, and so is one whose record an
// other's may have lost.
func TestEachFlushedPutIsOnTheDisk(t *testing.T) {
	d := newDisk(1<<16, 8)
	d.forgets = true
	w := newWorld(t, testenv.Seed(t), d, Config{Durability: FlushEach, FlushEvery: time.Hour})
	require.NoError(t, w.put("first", "", payload("first", 1, 100)))
	wrote := false
	d.fails(func(op string) (float64, error) {
		if op == "sync" && wrote {
			wrote = false
			return 0, errDisk
		}
		wrote = op == "write"
		return 1, nil
	})
	require.ErrorIs(t, w.put("second", "", payload("second", 1, 100)), errDisk)
	d.fails(nil)
	w.flushSoon()
	require.NoError(t, w.put("second", "", payload("second", 1, 100)))
	w.s.stop()
	w.open(d.crash(w.rng))
	require.Equal(t, payload("second", 1, 100), w.get("second"))
}
