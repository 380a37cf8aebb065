package cpu_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/inproc"
)

// BenchmarkPlan is the planning alone, for 8 ranks: made anew, found in the
// slot itself, and found in another slot.
func BenchmarkPlan(b *testing.B) {
	for _, tokens := range []int{128, 4096} {
		for _, flat := range []bool{false, true} {
			w := newWorld(b, 8, ep.Config{})
			s := shape{ranks: 8, maxTokens: tokens, hidden: 8, experts: 256, topk: 8}
			in := randomInput(r2(0), tokens, s.hidden, s.topk, s.experts, uniform)
			a := w.args(0, s, &in, new(dispatched))
			a.Flat = flat
			for _, from := range []string{"new", "same slot", "other slot"} {
				plan := cpu.Planning(w.bufs[0], a, from)
				b.Run(fmt.Sprintf("T=%d/flat=%v/%s", tokens, flat, from), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						plan()
					}
				})
			}
		}
	}
}

// BenchmarkRepeatedRouting is a dispatch and its release by a rank that is
// alone, with a plan made anew and with a known one in turn: on a machine with
// other work, the least of each says what a known plan saves.
func BenchmarkRepeatedRouting(b *testing.B) {
	for _, tokens := range []int{128, 1024} {
		for _, flat := range []bool{false, true} {
			b.Run(fmt.Sprintf("T=%d/flat=%v", tokens, flat), func(b *testing.B) { repeatRouting(b, tokens, flat) })
		}
	}
}

func repeatRouting(b *testing.B, tokens int, flat bool) {
	kern, err := kernels.New(kernels.Widest)
	require.NoError(b, err)
	buf, err := cpu.New(inproc.New(1, layout.ControlBytes)[0], kern, ep.Config{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = buf.Close() })
	w := &world{t: b, bufs: []*cpu.Buffer{buf}}
	s := shape{ranks: 1, maxTokens: tokens, hidden: 2048, experts: 64, topk: 8}
	in := randomInput(r2(0), tokens, s.hidden, s.topk, s.experts, uniform)
	a := w.args(0, s, &in, new(dispatched))
	a.Flat, a.NoRouting = flat, flat
	least := map[bool]time.Duration{true: time.Hour, false: time.Hour}
	var res ep.Result
	for b.Loop() {
		for _, known := range []bool{false, true} {
			if !known {
				cpu.ForgetPlans(buf)
			}
			began := time.Now()
			if _, err := buf.Dispatch(a, &res, ep.PhaseDone, -1); err != nil {
				b.Fatal(err)
			}
			least[known] = min(least[known], time.Since(began))
			if err := buf.Release(res.Op); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(least[false].Nanoseconds()), "least-ns/new")
	b.ReportMetric(float64(least[true].Nanoseconds()), "least-ns/known")
}
