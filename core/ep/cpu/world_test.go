package cpu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	kernels "github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cpu"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// callTimeout bounds calls that are expected to end well.
var callTimeout = 20 * time.Second

// world is R ranks in one process.
type world struct {
	t        testing.TB
	doms     []domain.Domain
	bufs     []*cpu.Buffer // nil: absent
	numBytes int64

	deterministic bool // for ranks that join
}

func newWorld(t testing.TB, ranks int, cfg ep.Config) *world {
	return newPartialWorld(t, ranks, rankset.Upto(ranks), cfg)
}

// newPartialWorld declares a number of ranks of which only some have come.
func newPartialWorld(t testing.TB, ranks int, present rankset.Set, cfg ep.Config) *world {
	w := &world{t: t, doms: newDomains(ranks, present), numBytes: cfg.NumBytes}
	w.bufs = make([]*cpu.Buffer, ranks)
	for r, dom := range w.doms {
		if !present.Has(r) {
			continue
		}
		b, err := cpu.New(dom, kernels.NewReference(), cfg)
		require.NoError(t, err)
		w.bufs[r] = b
		t.Cleanup(func() { _ = b.Close() })
	}
	return w
}

// overHosts is how groups of the tests below it are spread; nil: not at all.
var overHosts func(ranks int) inproc.Hosts

func newDomains(ranks int, present rankset.Set) []domain.Domain {
	if overHosts == nil {
		return inproc.NewPartial(ranks, present, layout.ControlBytes)
	}
	h := overHosts(ranks)
	h.WordsBytes = layout.WaitsFor()
	return inproc.NewHosts(present, layout.ControlBytes, h)
}

// each runs f once per rank, all at the same time, and reports every error.
func (w *world) each(f func(rank int) error) {
	w.t.Helper()
	w.some(rankset.Upto(len(w.bufs)), f)
}

// some is each for some ranks, one bit per rank.
func (w *world) some(ranks rankset.Set, f func(rank int) error) {
	w.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.bufs))
	for r := range w.bufs {
		if !ranks.Has(r) {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[r] = f(r)
		}()
	}
	wg.Wait()
	for r, err := range errs {
		require.NoError(w.t, err, "rank %d", r)
	}
}

// waits returns once a call of a rank waits for others.
func (w *world) waits(rank int) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return cpu.WaitsFor(w.bufs[rank]) != 0 }, callTimeout, 50*time.Microsecond)
}

// someWithout is some for calls that wait for ranks that do not come. Only the first
// rank has a deadline, and it begins when all the others wait. So only ranks that did
// not come are taken out, however slow the machine is.
func (w *world) someWithout(ranks rankset.Set, timeout time.Duration, f func(rank int, timeout time.Duration) error) {
	w.t.Helper()
	first := ranks.Min()
	w.some(ranks, func(r int) error {
		if r != first {
			return f(r, -1)
		}
		for r := range ranks.Without(first).All() {
			w.waits(r)
		}
		return f(r, timeout)
	})
}

// combineWithin is how long a combine may wait behind a dispatch that may wait
// for timeout: a late rank has been taken out there.
func combineWithin(timeout time.Duration) time.Duration {
	if timeout > 0 {
		return callTimeout
	}
	return timeout
}

// shape of one operation.
type shape struct {
	ranks, maxTokens, hidden, experts, topk int
	fp8                                     bool
	scales                                  protocol.DType // with fp8; 0: FP8
	fp32                                    bool           // outputs are float32
	preReduce                               bool           // sums of ranks are made first
}

func (s shape) rowType() protocol.DType {
	if !s.fp8 {
		return protocol.BF16
	}
	return max(s.scales, protocol.FP8)
}

func (s shape) outputType() protocol.DType {
	if s.fp32 {
		return protocol.FP32
	}
	return protocol.BF16
}

func (s shape) String() string {
	return fmt.Sprintf("R%d-M%d-H%d-E%d-K%d-fp8=%v", s.ranks, s.maxTokens, s.hidden, s.experts, s.topk, s.fp8)
}

// dispatched is what one rank holds after a dispatch.
type dispatched struct {
	res    ep.Result
	counts []int32
	layout []int64
}

func (w *world) args(rank int, s shape, in *input, d *dispatched) *ep.DispatchArgs {
	l := s.experts / s.ranks
	d.counts, d.layout = make([]int32, l), make([]int64, l*s.ranks)
	a := &ep.DispatchArgs{
		X: in.x, TopkIdx: in.topk, NumTokens: in.tokens, Hidden: s.hidden, TopK: s.topk,
		MaxTokens: s.maxTokens, NumExperts: s.experts, RowType: s.rowType(), OutputType: s.outputType(),
		RecvCount: d.counts, LayoutRange: d.layout, Timeout: callTimeout,
	}
	if s.preReduce {
		a.PreReduce, a.TopkWeights = true, in.weights
	}
	return a
}

func (w *world) dispatch(rank int, s shape, in *input) (*dispatched, error) {
	d := new(dispatched)
	p, err := w.bufs[rank].Dispatch(w.args(rank, s, in, d), &d.res, ep.PhaseDone, -1)
	if err == nil && p != nil {
		err = fmt.Errorf("dispatch returned a pending operation after waiting for its end")
	}
	return d, err
}

// compute runs the stand-in experts on what arrived, into the combine buffer.
func (d *dispatched) compute(rank int, s shape) {
	for e := range s.experts / s.ranks {
		d.computeRows(rank, s, e, 0, int(d.counts[e]))
	}
}

// computeCounted leaves out the rows that a lost rank had reserved: it may write there still.
func (d *dispatched) computeCounted(rank int, s shape) {
	for pair, of := range d.layout {
		d.computeRows(rank, s, pair/s.ranks, int(of>>32), int(of&(1<<32-1)))
	}
}

func (d *dispatched) computeRows(rank int, s shape, e, begin, n int) {
	l, c, row := s.experts/s.ranks, s.ranks*s.maxTokens, s.hidden*2
	for i := begin; i < begin+n; i++ {
		at := (e*c + i) * row
		expert(rank*l+e, d.res.RecvX[at:at+row], d.res.CombineX[at:at+row])
	}
}

func (w *world) combine(rank int, s shape, in *input, d *dispatched) ([]byte, error) {
	out := bytes.Repeat([]byte{0xaa}, in.tokens*s.hidden*2)
	_, err := w.bufs[rank].Combine(d.res.Op, &ep.CombineArgs{
		X: d.res.CombineX, ZeroCopy: true, TopkIdx: in.topk, TopkWeights: in.weights, Out: out,
		NumTokens: in.tokens, TopK: s.topk, Timeout: callTimeout,
	}, ep.PhaseDone, -1)
	return out, err
}

// check compares what a rank received with what all ranks sent (bf16).
func (d *dispatched) check(rank int, s shape, ins []input) error {
	return d.checkBeside(rank, s, ins, nil)
}

// checkBeside is check where a rank was lost: of its rows, lost, none count, and
// as many may have left holes.
func (d *dispatched) checkBeside(rank int, s shape, ins []input, lost *input) error {
	l, c := s.experts/s.ranks, s.ranks*s.maxTokens
	for e := range l {
		total := 0
		for src := range s.ranks {
			want := wantRows(&ins[src], s.topk, int64(rank*l+e))
			begin, n := int(d.layout[e*s.ranks+src]>>32), int(d.layout[e*s.ranks+src]&(1<<32-1))
			if n != len(want) {
				return fmt.Errorf("rank %d expert %d source %d: %d rows, want %d", rank, e, src, n, len(want))
			}
			total += n
			for i, tok := range want {
				at := e*c + begin + i
				if got := int(int32(binary.LittleEndian.Uint32(d.res.SrcInfo[at*4:]))); got != tok {
					return fmt.Errorf("rank %d expert %d source %d row %d: token %d, want %d", rank, e, src, i, got, tok)
				}
				row := s.hidden * 2
				if !s.fp8 && !bytes.Equal(d.res.RecvX[at*row:(at+1)*row], ins[src].x[tok*row:(tok+1)*row]) {
					return fmt.Errorf("rank %d expert %d source %d token %d: row differs", rank, e, src, tok)
				}
			}
		}
		holes := 0
		if lost != nil {
			holes = len(wantRows(lost, s.topk, int64(rank*l+e)))
		}
		if n := int(d.counts[e]); n < total || n > total+holes {
			return fmt.Errorf("rank %d expert %d: count %d, want %d and at most %d holes", rank, e, n, total, holes)
		}
	}
	return nil
}

func alive(int64) bool { return false }

// inputs draws every rank's part of one operation.
func inputs(r *rand.Rand, s shape, route routing) []input {
	ins := make([]input, s.ranks)
	for i := range ins {
		ins[i] = randomInput(r, r.IntN(s.maxTokens+1), s.hidden, s.topk, s.experts, route)
	}
	return ins
}

// seeded returns a generator. Its seed is in the log of a failing test.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}
