package endpoint

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/moewire/moewire/core/transport"
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

// BenchmarkStore is a million gets at 64 goroutines, of which one in a thousand
// is of a peer that has to be connected first, in place of another one.
func BenchmarkStore(b *testing.B) {
	for _, c := range []struct {
		name  string
		plain bool
		churn int
	}{{"map", true, 0}, {"hits", false, 0}, {"churn=1000", false, 1000}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				benchmarkGets(b, c.plain, c.churn)
			}
		})
	}
}

func benchmarkGets(b *testing.B, plain bool, churn int) {
	const peers, threads, gets = 64, 64, 1_000_000
	b.StopTimer()
	w := newWorld(1, peers/8, fake.Config{}, func(c *Config) { c.Cap = peers })
	s := w.nodes[0].now()
	var m shards
	for i := range m {
		m[i].m = map[Peer]Ref{}
	}
	for p := Peer(1); p < peers/8; p++ {
		r, err := s.Wait(p, time.Now().Add(time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		m.put(p, r)
	}
	took := make([][]time.Duration, threads)
	b.StartTimer()
	var wg sync.WaitGroup
	for k := range took {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(1, uint64(k)))
			for i := range gets / threads {
				p := Peer(1 + rng.IntN(peers/8-1))
				begin := time.Now()
				r, err := getOne(s, &m, plain, p)
				if i%16 == 0 {
					took[k] = append(took[k], time.Since(begin))
				}
				if err == nil && churn > 0 && i%churn == churn-1 {
					s.Retire(r)
				}
			}
		}()
	}
	wg.Wait()
	b.StopTimer()
	all := slices.Concat(took...)
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)*99/100].Nanoseconds()), "p99-ns")
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds()), "p50-ns")
	if err := w.closeFor(peers); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	b.StartTimer()
}

func getOne(s *Store, m *shards, plain bool, p Peer) (Ref, error) {
	if plain {
		r, ok := m.get(p)
		if !ok {
			return r, fmt.Errorf("peer %d: %w", p, transport.ErrState)
		}
		return r, nil
	}
	return s.Get(p)
}
