package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/medium"
)

// known is what a test knows of a key.
type known struct {
	version int  // of the block that it has, or had
	there   bool // as the store has said
	// flushed is what a flush made certain: 1 there, -1 not there, 0 nothing.
	flushed int
	// maybe are the versions that may be there once the power was cut: the latest that was flushed, and later ones.
	maybe []int
}

// model runs random calls, and what a process or a machine may go through between them.
type model struct {
	*world
	keys  map[string]*known
	roomy bool // nothing is ever evicted
	fails bool // the disk does: a block that is there may be a miss
}

func newModel(w *world, roomy bool) *model {
	return &model{world: w, keys: map[string]*known{}, roomy: roomy}
}

func (m *model) key() (string, *known) {
	key := fmt.Sprintf("key-%d", m.rng.IntN(60))
	if m.keys[key] == nil {
		m.keys[key] = &known{}
	}
	return key, m.keys[key]
}

func (m *model) sizeOf(key string, version int) int {
	return rand.New(rand.NewPCG(uint64(version), uint64(len(key)*1000)+uint64(key[len(key)-1]))).IntN(12_000)
}

func (m *model) bytes(key string, version int) []byte {
	return payload(key, version, m.sizeOf(key, version))
}

func (m *model) step() {
	key, k := m.key()
	switch m.rng.IntN(10) {
	case 0, 1, 2, 3:
		m.tryPut(key, k)
	case 4:
		deleted := m.delete(key)
		require.True(m.t, !m.roomy || deleted == k.there, key)
		if k.there = false; k.flushed == 1 {
			k.flushed = 0
		}
	case 5:
		m.tryAbort(key, k)
	case 6:
		if m.flush() == nil {
			m.flushedAll()
		}
	default:
		m.look(key, k)
	}
}

// tryPut writes the next version where there is no block, else the same or another one.
func (m *model) tryPut(key string, k *known) {
	if k.there && m.roomy && m.rng.IntN(2) == 0 {
		err := m.put(key, "", payload(key, k.version+1000, m.sizeOf(key, k.version)+1))
		require.ErrorIs(m.t, err, ErrConflict)
		return
	}
	version := k.version
	if !k.there {
		version++
	}
	switch err := m.put(key, "", m.bytes(key, version)); {
	case err == nil:
		require.False(m.t, k.there && m.roomy, "%s was written twice", key)
		k.version, k.there, k.maybe = version, true, append(k.maybe, version)
		if k.flushed == -1 {
			k.flushed = 0
		}
	case errors.Is(err, ErrExists):
		require.True(m.t, k.there)
	case errors.Is(err, ErrUnreadable):
		require.True(m.t, k.there && m.fails)
	default:
		require.ErrorIs(m.t, err, ErrFull)
		require.False(m.t, m.roomy, "%v", err)
	}
}

func (m *model) tryAbort(key string, k *known) {
	w, err := m.s.Allocate(Allocation{NS: m.ns, Key: []byte("other" + key), Bytes: 5000})
	if err == nil {
		clear(w.Buffer())
		w.Abort()
		w.Abort()
	}
	require.False(m.t, m.has("other"+key))
}

func (m *model) flushedAll() {
	for _, k := range m.keys {
		k.flushed, k.maybe = -1, nil
		if k.there {
			k.flushed, k.maybe = 1, []int{k.version}
		}
	}
}

// look compares what a reader gets.
func (m *model) look(key string, k *known) {
	losing, before := m.losses()
	got := m.get(key)
	if got != nil {
		require.True(m.t, k.there, "%s is there again", key)
		require.Equal(m.t, m.bytes(key, k.version), append([]byte{}, got...), key)
	} else if m.roomy && k.there {
		require.Failf(m.t, "lost", "%s", key)
	}
	has := m.has(key)
	loses, after := m.losses()
	isLost := got != nil && !has && (losing || loses || before != after) // by a flush that has failed, between the two
	require.True(m.t, has == (got != nil) || has && m.fails || isLost, key)
	k.there = has
}

// losses says whether blocks of segments in doubt are being given up, and changes when that begins or has ended.
func (m *model) losses() (now bool, state [2]int64) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return m.s.reclaiming, [2]int64{m.s.wet.doubted.Load(), int64(m.s.counts.evictedDoubted.Load())}
}

// again opens what is left of a disk, and takes what it has: what was flushed is certain, the rest is there or is not.
func (m *model) again(d *disk, powerCut bool) {
	old := m.s
	m.open(d)
	old.stop()
	for key, k := range m.keys {
		require.False(m.t, k.flushed == -1 && m.has(key), "%s was deleted, flushed, and is there", key)
		got := m.get(key) // which removes a block with wrong bytes
		switch {
		case got != nil:
			require.True(m.t, k.there || powerCut, "%s was deleted and is there", key)
			m.oneOf(key, k, powerCut, got)
		case k.there && m.roomy && (k.flushed == 1 || !powerCut):
			require.Failf(m.t, "lost", "%s was flushed: %d", key, k.flushed)
		}
		if k.there = got != nil; !k.there && k.flushed == 1 {
			k.flushed = 0
		}
	}
	m.accounts()
}

// oneOf takes the version that a block has, of those that it may have.
func (m *model) oneOf(key string, k *known, powerCut bool, got []byte) {
	for _, version := range k.maybe {
		if bytes.Equal(got, m.bytes(key, version)) && (powerCut || version == k.version) {
			k.version = version
			return
		}
	}
	require.Failf(m.t, "wrong bytes", "%s: version %d, maybe %d", key, k.version, k.maybe)
}

// stop ends a store's goroutine, as a kill would.
func (s *Store) stop() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.done)
	s.stopped.Wait()
}

// TestModel is random calls on every kind of medium, with and without the need to evict.
func TestModel(t *testing.T) {
	for name, c := range map[string]struct {
		disk     bool
		segments int
		each     Durability
	}{
		"memory, roomy":   {false, 64, FlushGroup},
		"memory, tight":   {false, 5, FlushGroup},
		"disk, roomy":     {true, 64, FlushNone},
		"disk, tight":     {true, 5, FlushNone},
		"disk, each":      {true, 64, FlushEach},
		"disk, by itself": {true, 40, FlushGroup},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range testenv.NumSeeds(t, 4) {
				var place medium.Medium = newDisk(1<<17, c.segments)
				if !c.disk {
					place = inMemory{place.(*disk)}
				}
				w := newWorld(t, testenv.Seed(t)+seed, place, Config{Durability: c.each, FlushEvery: time.Millisecond})
				m := newModel(w, c.segments > 30)
				steps := 1500
				if testing.Short() {
					steps = 500
				}
				for range steps {
					m.step()
				}
				m.accounts()
				for key, k := range m.keys {
					m.look(key, k)
				}
			}
		})
	}
}

// inMemory is a disk with segments in memory.
type inMemory struct{ *disk }

func (m inMemory) Lasts() bool                            { return false }
func (m inMemory) Bytes(segment int, off, n int64) []byte { return m.data[segment][off : off+n] }

// TestEnds ends the store at random points and opens it again: closed, killed, or without power.
func TestEnds(t *testing.T) {
	for _, segments := range []int{6, 64} {
		for _, how := range []string{"closed", "killed", "power"} {
			t.Run(fmt.Sprint(how, " of ", segments), func(t *testing.T) {
				for seed := range testenv.NumSeeds(t, 3) {
					d := newDisk(1<<16, segments)
					w := newWorld(t, testenv.Seed(t)+seed, d, Config{Durability: FlushNone})
					m := newModel(w, segments > 30)
					ends := 25
					if testing.Short() {
						ends = 12
					}
					for range ends {
						for range m.rng.IntN(60) {
							m.step()
						}
						d = m.end(d, how)
					}
				}
			})
		}
	}
}

func (m *model) end(d *disk, how string) *disk {
	switch how {
	case "closed":
		m.s.stop()
		require.NoError(m.t, m.s.sealAllOpen())
		d = d.killed()
		m.s.done = make(chan struct{})
	case "killed":
		d = d.killed()
	default:
		d = d.crash(m.rng)
	}
	m.again(d, how == "power")
	return d
}

// sealAllOpen is what Close does before it closes the medium.
func (s *Store) sealAllOpen() error {
	s.mu.Lock()
	s.retire()
	s.mu.Unlock()
	return s.sealAll()
}

// BS4: a Writing ends once. What comes behind its end says the same and changes nothing.
func TestWritingEndsOnce(t *testing.T) {
	for name, m := range map[string]medium.Medium{"disk": newDisk(1<<16, 8), "memory": inMemory{newDisk(1<<16, 8)}} {
		w := newWorld(t, testenv.Seed(t), m, Config{FlushEvery: time.Hour})
		allocate := func(key string, data []byte) *Writing {
			writing, err := w.s.Allocate(Allocation{NS: w.ns, Key: []byte(key), Bytes: int64(len(data)), Tag: w.tagOf(key, data)})
			require.NoError(t, err, name)
			copy(writing.Buffer(), data)
			return writing
		}
		one, two, data := allocate("key", payload("key", 1, 500)), allocate("key", payload("key", 2, 500)), payload("key", 1, 500)
		given := allocate("given up", data)
		require.False(t, w.has("key"), name)
		for range 3 {
			require.NoError(t, one.Commit(), name)
			require.ErrorIs(t, two.Commit(), ErrConflict, name)
			given.Abort()
			require.ErrorIs(t, given.Commit(), errGivenUp, name)
			one.Abort()
			require.Equal(t, data, w.get("key"), name)
			require.False(t, w.has("given up"), name)
			st := w.s.Stats()
			require.EqualValues(t, 1, st.Puts, name)
			require.Zero(t, st.ReservedBytes, name)
			w.accounts()
		}
	}
}
