package multirank

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkStart starts groups of processes and reports, of each part of a
// start, the time of the slowest rank: from the first process to the last rank
// that is connected; making memory and listener; the rendezvous, from all metadata
// known to a usable buffer; the first dispatch with combine, and the tenth.
//
//	go test -run=^$ -bench=Start -benchtime=5x ./tests/multirank
func BenchmarkStart(b *testing.B) {
	for _, ranks := range []int{2, 4, 8, 16, 32, 48} {
		b.Run(fmt.Sprintf("R%d", ranks), func(b *testing.B) {
			sums := map[string]time.Duration{}
			for range b.N {
				begin := time.Now()
				g := startGroup(b, "start", ranks)
				g.await("connected", time.Minute)
				sums["group"] += time.Since(begin)
				g.wait(time.Minute)
				for name, slowest := range g.slowest() {
					sums[name] += slowest
				}
			}
			b.ReportMetric(0, "ns/op")
			for name, sum := range sums {
				b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), name+"-ms")
			}
		})
	}
}

// slowest reads what the ranks said of their times.
func (g *group) slowest() map[string]time.Duration {
	most := map[string]time.Duration{}
	for _, l := range g.logs {
		for _, line := range l.lines {
			name, text, isTime := strings.Cut(line, "=")
			if !isTime {
				continue
			}
			took, err := time.ParseDuration(text)
			require.NoError(g.t, err)
			most[name] = max(most[name], took)
		}
	}
	return most
}

func init() { roles["start"] = start }

func start(e *env) error {
	e.say("connected")
	e.say(fmt.Sprintf("open=%v", e.took.open))
	e.say(fmt.Sprintf("meet=%v", e.took.meet))
	for n := range 10 {
		begin := time.Now()
		if err := e.rounds(n, 1, -1); err != nil {
			return err
		}
		if n == 0 || n == 9 {
			e.say(fmt.Sprintf("operation%d=%v", n+1, time.Since(begin)))
		}
	}
	return nil
}
