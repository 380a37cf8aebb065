package ep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/inproc"
)

// twoHosts are groups of which each half shares memory.
func twoHosts(n int) inproc.Hosts {
	return inproc.Hosts{Of: hostsOf(n, func(r int) int { return r / (n / 2) }), MaxMessageBytes: 1 << 20}
}

func useHosts(t *testing.T, of func(int) inproc.Hosts) {
	overHosts = of
	t.Cleanup(func() { overHosts = nil })
}

// TestFarBytes: a token crosses once per rank, however many experts it has
// there: distinct rows, their lists and a header are all that a dispatch sends;
// a combine sends one row per token and expert.
func TestFarBytes(t *testing.T) {
	useHosts(t, twoHosts)
	w := newWorld(t, 4, ep.Config{NumBytes: 64 << 20})
	s := shape{ranks: 4, maxTokens: 32, hidden: 256, experts: 16, topk: 6}
	r := seeded(t)
	for range 5 {
		ins := inputs(r, s, skewed)
		before := make([]ep.Counters, 4)
		for i, b := range w.bufs {
			before[i] = quietCounters(b)
		}
		w.each(func(rank int) error {
			d, err := w.dispatch(rank, s, &ins[rank])
			if err == nil {
				err = w.bufs[rank].Release(d.res.Op)
			}
			return err
		})
		for rank, b := range w.bufs {
			after := quietCounters(b)
			rows, words := int64(after.NumMessageBytesSent-before[rank].NumMessageBytesSent), int64(0)
			for other := range 4 {
				if other/2 != rank/2 {
					rows -= wantRowsBytes(&ins[rank], s, other)
				}
			}
			words = rows // what is left are words: 40 bytes each
			require.Zero(t, words%40, "rank %d", rank)
			require.LessOrEqual(t, words, int64(2*8*40))
		}
	}
}

// quietCounters waits until the buffer has said everything.
func quietCounters(b *ep.Buffer) ep.Counters {
	for c := b.Counters(); ; {
		time.Sleep(30 * time.Millisecond)
		next := b.Counters()
		if next.NumMessagesSent == c.NumMessagesSent {
			return next
		}
		c = next
	}
}

// wantRowsBytes is the formula of docs/wire.md, from the definition of routing.
func wantRowsBytes(in *input, s shape, owner int) int64 {
	l := int64(s.experts / s.ranks)
	tokens, selections := int64(0), int64(0)
	for t := range in.tokens {
		experts := map[int64]bool{}
		for _, id := range in.topk[t*s.topk : (t+1)*s.topk] {
			if id >= 0 && id/l == int64(owner) {
				experts[id] = true
			}
		}
		if len(experts) > 0 {
			tokens, selections = tokens+1, selections+int64(len(experts))
		}
	}
	up := func(n, to int64) int64 { return (n + to - 1) / to * to }
	size := int64(96) + up(4*l, 8) + up(4*tokens, 8) + up(tokens, 8) + 2*selections
	if tokens > 0 {
		size = up(size, 64) + tokens*int64(s.hidden)*2
	}
	return size
}

// TestFarNoAllocations: dispatch and combine between hosts allocate nothing in
// steady state.
func TestFarNoAllocations(t *testing.T) {
	skipIfRacing(t)
	useHosts(t, twoHosts)
	for _, flat := range []bool{false, true} {
		w := &world{t: t, doms: newDomains(2, 0b11), bufs: make([]*ep.Buffer, 2)}
		for r, dom := range w.doms {
			b, err := ep.New(bellless{dom}, cpu.NewReference(), ep.Config{NumBytes: 24 << 20})
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
type bellless struct{ transport.Domain }

func (d bellless) Wake(int)                    {}
func (d bellless) PrepareSleep() uint32        { return 0 }
func (d bellless) CancelSleep()                {}
func (d bellless) Sleep(uint32, time.Duration) { time.Sleep(50 * time.Microsecond) }

// TestFarRowTooLong: what cannot be sent to another host is refused, and
// consumes nothing.
func TestFarRowTooLong(t *testing.T) {
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
