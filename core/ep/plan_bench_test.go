package ep_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/transport/inproc"
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
				plan := ep.Planning(w.bufs[0], a, from)
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

// BenchmarkRepeatedRouting is a flat dispatch and its release by a rank that is
// alone, with the routing of the one before and without.
func BenchmarkRepeatedRouting(b *testing.B) {
	for _, tokens := range []int{128, 4096} {
		for _, again := range []bool{false, true} {
			b.Run(fmt.Sprintf("T=%d/again=%v", tokens, again), func(b *testing.B) {
				kern, err := cpu.New(cpu.Widest)
				require.NoError(b, err)
				buf, err := ep.New(inproc.New(1, layout.ControlBytes)[0], kern, ep.Config{})
				require.NoError(b, err)
				b.Cleanup(func() { _ = buf.Close() })
				w := &world{t: b, bufs: []*ep.Buffer{buf}}
				s := shape{ranks: 1, maxTokens: tokens, hidden: 2048, experts: 256, topk: 8}
				in := randomInput(r2(0), tokens, s.hidden, s.topk, s.experts, uniform)
				a := w.args(0, s, &in, new(dispatched))
				a.Flat, a.Bare = true, true
				var res ep.Result
				b.ReportAllocs()
				for b.Loop() {
					if !again {
						ep.ForgetPlans(buf)
					}
					if _, err := buf.Dispatch(a, &res, ep.PhaseDone, -1); err != nil {
						b.Fatal(err)
					}
					if err := buf.Release(res.Op); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
