package routing_test

import (
	"encoding/binary"
	"math"
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
	"github.com/moewire/moewire/core/ep/routing"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
)

// engine is a buffer as a group takes it.
type engine struct {
	*cpu.Buffer
	most int // tokens in one round
}

func (e engine) OneWayTokens(hidden int, extra [protocol.NumExtras]int) (int, error) {
	m, err := e.Buffer.OneWayTokens(hidden, extra)
	return min(m, e.most), err
}

func (e engine) Dispatch(a *ep.DispatchArgs, res *ep.Result, until ep.Phase, slice time.Duration) (routing.Pending, error) {
	p, err := e.Buffer.Dispatch(a, res, until, slice)
	if p == nil {
		return nil, err
	}
	return p, err
}

// world is R ranks in one process.
type world struct {
	t      testing.TB
	bufs   []*cpu.Buffer
	groups []*routing.Group
}

// newWorld has so many tokens in a round: few, so that calls take several.
func newWorld(t testing.TB, doms []domain.Domain, most int) *world {
	w := &world{t: t}
	for _, dom := range doms {
		b, err := cpu.New(dom, kernels.NewReference(), ep.Config{NumBytes: 16 << 20})
		require.NoError(t, err)
		g := routing.NewGroup(engine{b, most}, kernels.NewReference())
		t.Cleanup(func() { _ = b.Close(); g.Close() })
		w.bufs, w.groups = append(w.bufs, b), append(w.groups, g)
	}
	return w
}

var (
	layoutBytes = int64(layout.ControlBytes)
	wordsBytes  = int64(layout.WaitsFor())
)

func rankSet(ranks int) rankset.Set { return rankset.Upto(ranks) }

func oneHost(ranks int) []domain.Domain {
	return inproc.NewPartial(ranks, rankset.Upto(ranks), layout.ControlBytes)
}

// each runs f once per rank, all at the same time.
func (w *world) each(f func(rank int) error) {
	w.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.bufs))
	for r := range w.bufs {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	for r, err := range errs {
		require.NoError(w.t, err, "rank %d", r)
	}
}

// input is one rank's part.
type input struct {
	tokens  int
	ids     []int64   // [T, K]
	weights []float32 // [T, K]
	x       []byte    // [T, H] bf16
	extra   []byte
	bias    [2][]byte
}

// shape is what ranks agree on.
type shape struct {
	ranks, topK, experts, hidden, extra int
}

func (s shape) local() int { return s.experts / s.ranks }

func randomInput(rnd *rand.Rand, s shape, tokens int) input {
	in := input{tokens: tokens, extra: randomBytes(rnd, tokens*s.extra), x: randomRows(rnd, tokens*s.hidden)}
	for range tokens * s.topK {
		id := int64(rnd.IntN(s.experts))
		if rnd.IntN(5) == 0 {
			id = -1
		}
		in.ids, in.weights = append(in.ids, id), append(in.weights, rnd.Float32())
	}
	for i := range in.bias {
		if rnd.IntN(2) == 0 {
			in.bias[i] = randomRows(rnd, tokens*s.hidden)
		}
	}
	return in
}

func randomBytes(rnd *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

// randomRows are bf16 values.
func randomRows(rnd *rand.Rand, n int) []byte {
	b := make([]byte, 2*n)
	for i := range n {
		binary.LittleEndian.PutUint16(b[2*i:], toBF16(float32(rnd.NormFloat64())))
	}
	return b
}

func toBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func bf16At(b []byte, i int) float32 {
	return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16)
}

// goes reports whether a token has an expert on a rank.
func (in *input) goes(s shape, t, rank int) bool {
	for _, id := range in.ids[t*s.topK:][:s.topK] {
		if id >= 0 && int(id)/s.local() == rank {
			return true
		}
	}
	return false
}

// run drives a call to its end.
func run(c *routing.Call, err error) error {
	if err != nil {
		return err
	}
	return c.Drive(-1)
}
