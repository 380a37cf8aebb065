package store

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/index"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/record"
	"github.com/moewire/moewire/core/store/tag"
)

// world is a store and what is known of its blocks.
type world struct {
	t      *testing.T
	rng    *rand.Rand
	s      *Store
	ns     NS
	digest record.Digest
	tagger *tag.Tagger
	config Config
}

func digestOf(name string) record.Digest { return sha256.Sum256([]byte(name)) }

func newWorld(t *testing.T, seed uint64, m medium.Medium, config Config) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 5)), digest: digestOf("model"), config: config}
	w.open(m)
	w.tagger = tag.New(w.s.TagKey(), w.digest)
	t.Cleanup(func() { require.NoError(t, w.s.Close()) })
	return w
}

func (w *world) open(m medium.Medium) {
	cfg := w.config
	cfg.Medium = m
	if d, is := m.(*disk); is {
		cfg.Secret = d.secret
	}
	s, err := Open(cfg)
	require.NoError(w.t, err)
	w.s = s
	w.ns, err = s.Namespace(w.digest, "model")
	require.NoError(w.t, err)
}

// payload of a key is made of its name and a version.
func payload(key string, version, n int) []byte {
	rng := rand.New(rand.NewPCG(uint64(version), uint64(len(key))))
	out := append([]byte(fmt.Sprintf("%s/%d/", key, version)), make([]byte, n)...)
	for i := len(out) - n; i < len(out); i++ {
		out[i] = byte(rng.Uint32())
	}
	return out[:n]
}

func (w *world) tagOf(key string, data []byte) tag.Tag {
	w.tagger.Begin([]byte(key), len(data))
	w.tagger.Write(data)
	return w.tagger.Tag()
}

func (w *world) put(key, parent string, data []byte) error {
	writing, err := w.s.Allocate(Allocation{
		NS: w.ns, Key: []byte(key), Parent: []byte(parent), Bytes: int64(len(data)), Tag: w.tagOf(key, data),
	})
	if err != nil {
		return err
	}
	copy(writing.Buffer(), data)
	return writing.Commit()
}

// get is what a reader sees: nil for a miss, or bytes after a comparison of their tag.
func (w *world) get(key string) []byte {
	leases := make([]Lease, 1)
	if w.s.Acquire(w.ns, [][]byte{[]byte(key)}, leases) == 0 {
		return nil
	}
	l := &leases[0]
	defer l.Release()
	data := make([]byte, l.Bytes())
	if l.Read(0, data) != nil || w.tagOf(key, data) != l.Tag() {
		l.Bad()
		return nil
	}
	return data
}

func (w *world) has(key string) bool {
	found := make([]bool, 1)
	w.s.Exists(w.ns, [][]byte{[]byte(key)}, found)
	return found[0]
}

func (w *world) delete(key string) bool {
	deleted := make([]bool, 1)
	return w.s.Delete(w.ns, [][]byte{[]byte(key)}, deleted) == 1
}

func (w *world) flush() error { return w.s.Flush(time.Now().Add(time.Minute)) }

// accounts holds the sum of bytes to the capacity, and counts blocks and their bytes another way.
func (w *world) accounts() {
	st := w.s.Stats()
	w.s.mu.Lock()
	placed := int64(0)
	for i := range w.s.segments {
		if g := &w.s.segments[i]; g.hasRecords() {
			placed += g.next
		}
	}
	w.s.mu.Unlock()
	records := int64(0)
	w.s.index.Each(func(b *index.Block) { records += b.RecordBytes() })
	require.Equal(w.t, records, st.LiveBytes)
	require.LessOrEqual(w.t, records, placed)
	require.Equal(w.t, st.CapacityBytes, st.LiveBytes+st.DeadBytes+st.FreeBytes)
	require.GreaterOrEqual(w.t, st.FreeBytes, int64(0))
	want := map[NS][2]int64{}
	w.s.index.Each(func(b *index.Block) {
		n := want[NS(b.Namespace)]
		want[NS(b.Namespace)] = [2]int64{n[0] + 1, n[1] + int64(b.PayloadBytes)}
	})
	total := int64(0)
	for i := range w.s.names.all { // some numbers may be free
		blocks, bytes := w.s.Usage(NS(i))
		require.Equal(w.t, want[NS(i)], [2]int64{blocks, bytes})
		total += blocks
	}
	require.EqualValues(w.t, st.NumBlocks, total)
}
