package cpu_test

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// twoHosts are groups of which each half shares memory.
func twoHosts(n int) inproc.Hosts {
	return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / (n / 2) }), MaxMessageBytes: 1 << 20}
}

func useHosts(t *testing.T, of func(int) inproc.Hosts) {
	overHosts = of
	t.Cleanup(func() { overHosts = nil })
}

// TestRemoteBytes: a token crosses once per rank, however many experts it has
// there: distinct rows, their lists and a header are all that a dispatch sends;
// a combine sends one row per token and expert or, pre-reduced, per token.
func TestRemoteBytes(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 4, ep.Config{NumBytes: 64 << 20})
	r := seeded(t)
	for i := range 8 {
		s := shape{ranks: 4, maxTokens: 32, hidden: 256, experts: 16, topk: 6, preReduce: i%2 == 1, fp32: i%4 > 1, fp8: i > 3}
		ins := inputs(r, s, skewed)
		before := make([]ep.Counters, 4)
		for i, b := range w.bufs {
			before[i] = settledCounters(b)
		}
		w.each(func(rank int) error { return w.preReduceTrip(rank, s, &ins[rank], true) })
		for rank, b := range w.bufs {
			after := settledCounters(b)
			words := int64(after.NumMessageBytesSent - before[rank].NumMessageBytesSent)
			for other := range 4 {
				if other/2 != rank/2 {
					words -= wantRowsBytes(&ins[rank], s, other) + 2*wantOutputsBytes(&ins[other], s, rank) // combined twice
				}
			}
			// What is left are words: 40 bytes each.
			require.Zero(t, words%40, "rank %d", rank)
			require.GreaterOrEqual(t, words, int64(0))
			require.LessOrEqual(t, words, int64(2*16*40))
		}
	}
}

// settledCounters waits until the buffer has said everything.
func settledCounters(b *cpu.Buffer) ep.Counters {
	for c := b.Counters(); ; {
		time.Sleep(30 * time.Millisecond)
		next := b.Counters()
		if next.NumMessagesSent == c.NumMessagesSent {
			return next
		}
		c = next
	}
}

// goesTo counts what of a source goes to a rank: tokens, distinct pairs of token
// and expert, and selections.
func goesTo(in *input, s shape, owner int) (tokens, pairs, selections int64) {
	l := int64(s.experts / s.ranks)
	for t := range in.tokens {
		experts := map[int64]bool{}
		for _, id := range in.topk[t*s.topk : (t+1)*s.topk] {
			if id >= 0 && id/l == int64(owner) {
				experts[id] = true
				selections++
			}
		}
		if len(experts) > 0 {
			tokens, pairs = tokens+1, pairs+int64(len(experts))
		}
	}
	return tokens, pairs, selections
}

// wantRowsBytes is the formula of docs/wire.md, from the definition of routing.
func wantRowsBytes(in *input, s shape, owner int) int64 {
	tokens, entries, selections := goesTo(in, s, owner)
	l, row, groups := int64(s.experts/s.ranks), int64(s.hidden)*2, int64(0)
	if s.fp8 {
		row, groups = int64(s.hidden), int64(s.hidden)/128
	}
	weights := int64(0)
	if s.preReduce {
		entries, weights = selections, 4*selections
	}
	up := func(n, to int64) int64 { return (n + to - 1) / to * to }
	size := int64(96) + up(4*l, 8) + up(4*tokens, 8) + up(tokens, 8) + up(2*entries, 8) + up(weights, 8) + 4*tokens*groups
	if tokens > 0 {
		return up(size, 64) + tokens*row
	}
	return size
}

// wantOutputsBytes is what a combine brings back to a source.
func wantOutputsBytes(in *input, s shape, owner int) int64 {
	tokens, rows, _ := goesTo(in, s, owner)
	if s.preReduce {
		rows = tokens
	}
	if rows == 0 {
		return 0 // nothing is said
	}
	row := int64(s.hidden) * 2
	if s.fp32 {
		row *= 2
	}
	return 64 + rows*row
}

// BenchmarkRemoteBytes measures what a token costs between 8 ranks on 8 hosts, with
// uniform routing, beside the algorithm that sends a row per expert both ways. Run it
// for the bytes; its times mean nothing.
func BenchmarkRemoteBytes(b *testing.B) {
	overHosts = hostPlacements[0].of
	b.Cleanup(func() { overHosts = nil })
	for _, experts := range []int{64, 256} {
		for _, fp8 := range []bool{false, true} {
			for _, preReduce := range []bool{false, true} {
				s := shape{ranks: 8, maxTokens: 4, hidden: 7168, experts: experts, topk: 8, fp8: fp8, preReduce: preReduce}
				b.Run(fmt.Sprintf("E%d-fp8=%v-pre=%v", experts, fp8, preReduce), func(b *testing.B) { benchRemoteBytes(b, s) })
			}
		}
	}
}

func benchRemoteBytes(b *testing.B, s shape) {
	b.Cleanup(debug.FreeOSMemory)
	slab := int64(s.experts * s.maxTokens * s.hidden * 4)
	w := newWorld(b, s.ranks, ep.Config{NumSlots: 1, NumBytes: slab + 16<<20})
	r := rand.New(rand.NewPCG(1, 2))
	var tokens, perExpert, sent, all int64
	for range b.N {
		ins := make([]input, s.ranks)
		for rank := range ins {
			ins[rank] = randomInput(r, s.maxTokens, s.hidden, s.topk, s.experts, uniform)
			tokens += int64(s.maxTokens)
			for other := range s.ranks {
				if _, pairs, _ := goesTo(&ins[rank], s, other); other != rank {
					perExpert += pairs
					sent += wantRowsBytes(&ins[rank], s, other) // TestRemoteBytes compares it with what is sent
				}
			}
		}
		w.each(func(rank int) error {
			d, err := w.dispatch(rank, s, &ins[rank])
			if err == nil {
				_, err = w.combine(rank, s, &ins[rank], d)
			}
			return err
		})
	}
	for _, buf := range w.bufs {
		all += int64(settledCounters(buf).NumMessageBytesSent)
	}
	per := func(bytes int64) float64 { return float64(bytes) / float64(tokens) / 1000 }
	b.ReportMetric(float64(perExpert)/float64(tokens), "remote_pairs/token")
	b.ReportMetric(per(sent), "dispatch_kB/token")
	b.ReportMetric(per(all-sent), "combine_kB/token")
	b.ReportMetric(0, "ns/op")
}

// TestRemoteNoAllocations: dispatch and combine between hosts allocate nothing in
// steady state.
func TestRemoteNoAllocations(t *testing.T) {
	skipIfRacing(t)
	useHosts(t, twoHosts)
	for i := range 3 {
		flat, preReduce := i == 1, i == 2
		w := &world{t: t, doms: newDomains(2, rankset.Of(0, 1)), bufs: make([]*cpu.Buffer, 2)}
		for r, dom := range w.doms {
			b, err := cpu.New(bellless{dom}, kernels.NewReference(), ep.Config{NumBytes: 24 << 20})
			require.NoError(t, err)
			w.bufs[r] = b
			t.Cleanup(func() { _ = b.Close() })
		}
		s := flatShape{shape: shape{ranks: 2, maxTokens: 8, hidden: 16, experts: 4, topk: 2}}
		ins := flatInputs(r2(0), s, uniform)
		var ds [2]dispatched
		var as [2]*ep.DispatchArgs
		var cs [2]*ep.CombineArgs
		for r := range as {
			as[r] = w.args(r, s.shape, &ins[r].input, &ds[r])
			cs[r] = &ep.CombineArgs{
				TopkIdx: ins[r].topk, TopkWeights: ins[r].weights, Out: make([]byte, ins[r].tokens*32), NumTokens: ins[r].tokens,
				TopK: 2, Timeout: 20 * time.Second, Flat: flat,
			}
			if as[r].PreReduce = preReduce; preReduce {
				as[r].TopkWeights = ins[r].weights
			}
			if flat {
				as[r] = w.flatArgs(r, s, &ins[r], &ds[r])
			}
		}
		step, ended := [2]chan bool{make(chan bool), make(chan bool)}, make(chan error, 2)
		for r := range 2 {
			go func() {
				for range step[r] {
					_, err := w.bufs[r].Dispatch(as[r], &ds[r].res, ep.PhaseDone, -1)
					if err == nil {
						cs[r].X = ds[r].res.CombineX
						_, err = w.bufs[r].Combine(ds[r].res.Op, cs[r], ep.PhaseDone, -1)
					}
					ended <- err
				}
			}()
		}
		var failed error
		n := testing.AllocsPerRun(200, func() {
			step[0] <- true
			step[1] <- true
			for range 2 {
				if err := <-ended; err != nil {
					failed = err
				}
			}
		})
		close(step[0])
		close(step[1])
		require.NoError(t, failed)
		require.Zero(t, n)
	}
}

// bellless has no bell: that of an in-process group is a channel, made anew
// each time it rings.
type bellless struct{ domain.Domain }

func (d bellless) Wake(int)                    {}
func (d bellless) PrepareSleep() uint32        { return 0 }
func (d bellless) CancelSleep()                {}
func (d bellless) Sleep(uint32, time.Duration) { time.Sleep(50 * time.Microsecond) }

// TestRemoteRowTooLong: what cannot be sent to another host is refused, and
// consumes nothing.
func TestRemoteRowTooLong(t *testing.T) {
	useHosts(t, func(n int) inproc.Hosts {
		h := twoHosts(n)
		h.MaxMessageBytes = 1 << 10
		return h
	})
	w := newWorld(t, 2, ep.Config{NumBytes: 24 << 20})
	big := shape{ranks: 2, maxTokens: 4, hidden: 1024, experts: 4, topk: 2}
	for rank := range w.bufs {
		in := randomInput(r2(rank), 4, big.hidden, 2, 4, uniform)
		_, err := w.dispatch(rank, big, &in)
		require.ErrorIs(t, err, ep.ErrInvalid)
		require.ErrorContains(t, err, "hidden 1024")
		require.ErrorContains(t, err, "1024 bytes of a message")
	}
	ins := inputs(r2(3), small, uniform)
	w.each(func(rank int) error { return w.roundTrip(rank, small, ins) })
}
