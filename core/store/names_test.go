package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/testenv"
	"github.com/moewire/moewire/core/store/medium"
	"github.com/moewire/moewire/core/store/tag"
)

// space is a namespace in tests: its blocks all have the key "k".
type space struct {
	s      *Store
	ns     NS
	tagger *tag.Tagger
	data   []byte
}

func (w *world) space(t require.TestingT, name string) *space {
	digest := digestOf(name)
	ns, err := w.s.Namespace(digest, name)
	require.NoError(t, err, name)
	return &space{w.s, ns, tag.New(w.s.TagKey(), digest), []byte(name)}
}

func (p *space) put() error {
	writing, err := p.s.Allocate(Allocation{NS: p.ns, Key: []byte("k"), Bytes: int64(len(p.data)), Tag: p.tag()})
	if err != nil {
		return err
	}
	copy(writing.Buffer(), p.data)
	return writing.Commit()
}

func (p *space) tag() tag.Tag { return p.tagger.Of([]byte("k"), p.data) }

// look reports whether there is a block, which has to be that of the namespace.
func (p *space) look(t require.TestingT) bool {
	leases := make([]Lease, 1)
	p.s.Acquire(p.ns, [][]byte{[]byte("k")}, leases)
	defer leases[0].Release()
	if leases[0].Held() {
		require.Equal(t, p.tag(), leases[0].Tag(), "another namespace's block")
	}
	return leases[0].Held()
}

func (p *space) delete() bool { return p.s.Delete(p.ns, [][]byte{[]byte("k")}, make([]bool, 1)) == 1 }

func (p *space) leave() { p.s.Leave(p.ns) }

func (s *Store) numNames() int {
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	return len(s.names.byDigest)
}

// TestManyNamespacesInTurn: models that change for ever never end at the bound, and namespaces that several have open at a time,
// that come back and that lose their last block meanwhile have their own blocks only. On a disk, also while segments are sealed.
func TestManyNamespacesInTurn(t *testing.T) {
	t.Run("memory", func(t *testing.T) { manyInTurn(t, memory(t), 2*MaxNamespaces, true) })
	t.Run("disk", func(t *testing.T) {
		manyInTurn(t, newWorld(t, 1, newDisk(1<<17, 12), Config{Durability: FlushNone}), MaxNamespaces/4, false)
	})
}

// manyInTurn is for a store that evicts nothing if it is roomy.
func manyInTurn(t *testing.T, w *world, num int, roomy bool) {
	const workers, shared = 4, 5
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(testenv.Seed(t), uint64(worker)))
			for turn := range num / workers {
				own, one := w.space(t, fmt.Sprint(worker, "/", turn)), w.space(t, fmt.Sprint("shared ", rng.IntN(shared)))
				require.NoError(t, own.put())
				if err := one.put(); err != nil {
					require.ErrorIs(t, err, ErrExists)
				}
				require.True(t, own.look(t) || !roomy)
				one.look(t)
				if rng.IntN(2) == 0 {
					one.delete()
				}
				one.leave()
				require.True(t, own.delete() || !roomy)
				own.leave()
			}
		})
	}
	all.Wait()
	for i := range shared {
		one := w.space(t, fmt.Sprint("shared ", i))
		one.delete()
		one.leave()
	}
	require.Equal(t, 1, w.s.numNames(), "that of the world")
	require.Zero(t, w.s.Stats().NumBlocks)
	require.LessOrEqual(t, len(w.s.names.all), 1+workers+shared)
	w.accounts()
}

// TestNamespacesModel is random calls against a plain count of holders and blocks: a namespace is there as long as it has one of
// them, with one number, and is forgotten then. What was asked of it stays counted.
func TestNamespacesModel(t *testing.T) {
	w := memory(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 9))
	type state struct {
		ns      NS
		open    []*space
		block   bool
		pending []*Writing
	}
	states, asked := map[string]*state{}, uint64(0)
	for range 6000 {
		name := fmt.Sprint(rng.IntN(7))
		st := states[name]
		if st == nil {
			st = &state{}
			states[name] = st
		}
		wasThere := len(st.open)+len(st.pending) > 0 || st.block
		switch op := rng.IntN(7); {
		case op == 0 || len(st.open) == 0:
			p := w.space(t, name)
			require.True(t, !wasThere || p.ns == st.ns, "another number")
			st.ns, st.open = p.ns, append(st.open, p)
		case op == 1:
			st.open[0].leave()
			st.open = st.open[1:]
		case op == 2:
			require.Equal(t, !st.block, st.open[0].put() == nil)
			st.block = true
		case op == 3:
			require.Equal(t, st.block, st.open[0].delete())
			st.block = false
		case op == 4:
			writing, err := w.s.Allocate(Allocation{NS: st.ns, Key: []byte("other"), Bytes: 3})
			require.NoError(t, err)
			st.pending = append(st.pending, writing)
		case op == 5 && len(st.pending) > 0:
			st.pending[0].Abort()
			st.pending = st.pending[1:]
		default:
			asked++
			require.Equal(t, st.block, st.open[0].look(t))
		}
		numbers, there := map[NS]bool{w.ns: true}, 1
		for _, st := range states {
			if len(st.open)+len(st.pending) > 0 || st.block {
				numbers[st.ns] = true
				there++
			}
		}
		require.Len(t, numbers, there, "two have one number")
		require.Equal(t, there, w.s.numNames())
	}
	counted := uint64(0)
	for _, n := range w.s.Stats().Namespaces {
		counted += n.Hits + n.Misses
	}
	require.Equal(t, asked, counted)
	for _, st := range states {
		for _, writing := range st.pending {
			writing.Abort()
		}
	}
}

// At the bound one more namespace is refused, until another one is gone.
func TestNamespacesBound(t *testing.T) {
	w := memory(t)
	var last *space
	for i := range MaxNamespaces - 1 {
		last = w.space(t, fmt.Sprint(i))
	}
	_, err := w.s.Namespace(digestOf("one more"), "")
	require.ErrorIs(t, err, ErrNamespaces)
	require.NoError(t, last.put())
	last.leave()
	_, err = w.s.Namespace(digestOf("one more"), "")
	require.ErrorIs(t, err, ErrNamespaces, "it has a block")
	last = w.space(t, string(last.data))
	require.True(t, last.delete())
	last.leave()
	w.space(t, "one more")
}

// A tenant with a quota cannot take the namespaces of all others. What it has more, from before its quota, stays.
func TestNamespacesOfAQuota(t *testing.T) {
	w := memory(t)
	for i := range MaxQuotaNamespaces + 1 {
		w.owned(t, 1, fmt.Sprint(i))
		w.owned(t, 2, fmt.Sprint(i))
	}
	one := w.owned(t, 1, "0")
	w.setQuotas(map[[16]byte]int64{one.tenant: 1 << 20})
	w.owned(t, 1, "0")
	more := one.digest
	more[0]++
	_, err := w.s.Namespace(more, "")
	require.ErrorIs(t, err, ErrNamespaces)
	w.owned(t, 2, "more")
	for i := range 2 {
		o := w.owned(t, 1, fmt.Sprint(i))
		for w.s.names.of(o.ns) != nil {
			w.s.Leave(o.ns)
		}
	}
	_, err = w.s.Namespace(more, "")
	require.NoError(t, err)
}

// The last block of a namespace that is not open may be evicted.
func TestNamespacesOfEvictedBlocks(t *testing.T) {
	w := newWorld(t, 1, inMemory{newDisk(1<<16, 6)}, Config{})
	for i := range 20 {
		p := w.space(t, fmt.Sprint(i))
		require.NoError(t, p.put())
		p.leave()
	}
	require.Equal(t, 1+20, w.s.numNames())
	for i := range 400 {
		require.NoError(t, w.put(fmt.Sprint("key ", i), "", make([]byte, 5000)))
	}
	require.Equal(t, 1, w.s.numNames())
}

// TestNamespacesAfterAStart: those without blocks take no place, closed or killed; where there are more than may be,
// the blocks of some are dropped for good, and the store begins.
func TestNamespacesAfterAStart(t *testing.T) {
	for _, killed := range []bool{false, true} {
		d := newDisk(1<<18, 16)
		w := newWorld(t, 1, d, Config{Durability: FlushNone})
		for i := range 200 {
			p := w.space(t, fmt.Sprint(i))
			require.NoError(t, p.put())
			require.True(t, i%50 == 0 || p.delete())
			p.leave()
		}
		require.Equal(t, 1+4, w.s.numNames())
		if !killed {
			w.s.mu.Lock()
			w.s.retire()
			w.s.mu.Unlock()
			require.NoError(t, w.s.sealAll())
		}
		again := newWorld(t, 1, d.killed(), Config{Durability: FlushNone})
		require.Equal(t, 1+4, again.s.numNames())
		for i := range 200 {
			p := again.space(t, fmt.Sprint(i))
			require.Equal(t, i%50 == 0, p.look(t), i)
			p.leave()
		}
		again.accounts()
		full := d.killed()
		require.Equal(t, 1, startFull(t, full, MaxNamespaces-1), "of 4 blocks there is room for one namespace's")
		require.Equal(t, 1, startFull(t, full.killed(), 0), "and the others do not come back")
	}
}

// startFull starts a store that has so many namespaces already, and returns how many blocks it has found.
func startFull(t *testing.T, m medium.Medium, num int) int {
	s := newStore(Config{Medium: m, Secret: m.(*disk).secret}.filled())
	for i := range num {
		_, err := s.names.hold(digestOf(fmt.Sprint("of another kind ", i)))
		require.NoError(t, err)
	}
	require.NoError(t, (&recovery{Store: s, said: map[int]bool{}}).run())
	return s.index.Len()
}
