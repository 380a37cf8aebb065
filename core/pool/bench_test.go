package pool

import (
	"testing"
	"time"
)

// A link of one unit per tick of work and a delay of so many units: with a cap
// of the delay-bandwidth product a sender loses (nearly) nothing (SC9).
const delayUnits = 64

func benchmarkPipe(b *testing.B, size int) {
	pool, err := New(Config[[]byte]{Cap: size, Make: func() ([]byte, error) { return make([]byte, 64<<10), nil }})
	if err != nil {
		b.Fatal(err)
	}
	type sent struct {
		l   Lease[[]byte]
		due time.Time
	}
	const unit = 20 * time.Microsecond
	wire := make([]sent, 0, size)
	free := time.Now() // when the link has sent what it has
	for b.Loop() {
		for {
			now := time.Now()
			for len(wire) > 0 && !wire[0].due.After(now) {
				_ = pool.Put(wire[0].l)
				wire = wire[:copy(wire, wire[1:])]
			}
			l, err := pool.Get()
			if err == nil {
				free = laterOf(free, now).Add(unit)
				wire = append(wire, sent{l, free.Add((delayUnits - 1) * unit)})
				break
			}
		}
	}
	b.ReportMetric(float64(unit)*float64(b.N)/float64(b.Elapsed()), "of-link")
}

func laterOf(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func BenchmarkPipe(b *testing.B) {
	b.Run("cap=product", func(b *testing.B) { benchmarkPipe(b, delayUnits) })
	b.Run("uncapped", func(b *testing.B) { benchmarkPipe(b, 1<<16) })
}

func BenchmarkGetPut(b *testing.B) {
	pool, _ := New(Config[int]{Cap: 64, Make: func() (int, error) { return 0, nil }})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if l, err := pool.Get(); err == nil {
				_ = pool.Put(l)
			}
		}
	})
}
