package endpoint

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport/fake"
)

// shards is the plain peer of a store: a map in pieces, without a bound,
// without a device behind it, and without evictions.
type shards [64]struct {
	sync.RWMutex
	m map[Peer]Ref
}

func (s *shards) get(p Peer) (Ref, bool) {
	at := &s[p%64]
	at.RLock()
	defer at.RUnlock()
	r, ok := at.m[p]
	return r, ok
}

func (s *shards) put(p Peer, r Ref) {
	at := &s[p%64]
	at.Lock()
	defer at.Unlock()
	at.m[p] = r
}

// benchCase is which peers are asked for, and where. With more peers than places some are
// asked for far more often than others, as caches expect.
type benchCase struct {
	name         string
	plain        bool
	churn        int // each time after so many gets, what was got is retired
	peers, known int // known: connected beforehand
}

func (c *benchCase) evicts() bool { return c.peers > benchCap }

const (
	benchCap     = 64
	benchThreads = 64
	benchGets    = 1_000_000
)

// BenchmarkStore is a million gets at 64 goroutines: of few peers that are there;
// of which one in a thousand has to be connected first, in place of another one;
// and of 16 times as many peers as there are places, so that gets insert and
// evict. Each has a plain map beside it.
func BenchmarkStore(b *testing.B) {
	const few, many = 7, 16 * benchCap
	for _, c := range []benchCase{
		{"map", true, 0, few, few}, {"hits", false, 0, few, few}, {"churn=1000", false, 1000, few, few},
		{"map/peers=1024", true, 0, many, benchCap}, {"evict/peers=1024", false, 0, many, benchCap},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				benchmarkGets(b, c)
			}
		})
	}
}

func benchmarkGets(b *testing.B, c benchCase) {
	b.StopTimer()
	w := manyPeersOf(sound, 1, fake.Config{}, func(at int, cfg *Config) {
		cfg.Cap, cfg.MaxPeers = (1+at)*benchCap, 2*c.peers
	})
	s := w.nodes[0].now()
	var m shards
	for i := range m {
		m[i].m = map[Peer]Ref{}
	}
	for p := range Peer(c.known) {
		r, err := s.Wait(p, time.Now().Add(time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		m.put(p, r)
	}
	took := make([][]time.Duration, benchThreads)
	var missed atomic.Int64
	b.StartTimer()
	var wg sync.WaitGroup
	for k := range took {
		wg.Go(func() {
			var misses int64
			took[k], misses = c.gets(s, &m, rand.New(rand.NewPCG(1, uint64(k))))
			missed.Add(misses)
		})
	}
	wg.Wait()
	b.StopTimer()
	c.report(b, slices.Concat(took...), missed.Load(), s.Stats())
	if err := w.closeFor(2 * benchCap); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	b.StartTimer()
}

// gets is one goroutine's part. Of 16 gets one is timed. A goroutine that misses in the
// store waits until it has its connection, as its owner would: 64 goroutines that only
// ask again leave no processor to those that connect.
func (c *benchCase) gets(s *Store, m *shards, rng *rand.Rand) (took []time.Duration, misses int64) {
	zipf := rand.NewZipf(rng, 2.5, 4, uint64(c.peers-1))
	for i := range benchGets / benchThreads {
		p := Peer(rng.IntN(c.peers))
		if c.evicts() {
			p = Peer(zipf.Uint64())
		}
		begin := time.Now()
		r, err := c.get(s, m, p)
		if i%16 == 0 {
			took = append(took, time.Since(begin))
		}
		if err != nil {
			misses++
			if !c.plain {
				_, _ = s.Wait(p, time.Now().Add(time.Minute))
			}
		} else if c.churn > 0 && i%c.churn == c.churn-1 {
			s.Retire(r)
		}
	}
	return took, misses
}

// get of the plain map inserts a peer that is not there, and evicts none.
func (c *benchCase) get(s *Store, m *shards, p Peer) (Ref, error) {
	if !c.plain {
		return s.Get(p)
	}
	r, ok := m.get(p)
	if !ok {
		m.put(p, r)
		return r, ErrConnecting
	}
	return r, nil
}

// report fails where gets were to evict and have not.
func (c *benchCase) report(b *testing.B, took []time.Duration, misses int64, stats Stats) {
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(100*float64(misses)/benchGets, "misses-%")
	if c.plain || !c.evicts() {
		return
	}
	b.ReportMetric(float64(stats.Evicted), "evictions")
	if stats.Evicted == 0 {
		b.Fatalf("nobody was evicted: %+v", stats)
	}
}
