package cuda_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/device/cuda/cudatest"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/cuda"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/internal/testenv"
)

// connectIn bounds what takes milliseconds.
const connectIn = time.Minute

// shapeOf is a small shape: a row is 256 bytes.
func shapeOf(ranks int) layout.Shape {
	return layout.Shape{MaxTokens: 6, Hidden: 128, NumExperts: int64(2 * ranks), NumRanks: int64(ranks)}
}

const topK = 3

func configOf(t testing.TB, ranks int) cuda.Config {
	cfg := configFor(t, shapeOf(ranks))
	cfg.MaxSelections = 64
	return cfg
}

// configFor is for operations of a shape.
func configFor(t testing.TB, s layout.Shape) cuda.Config {
	n, err := layout.SizeHint(s, 2)
	require.NoError(t, err)
	return cuda.Config{Config: ep.Config{NumSlots: 2, NumBytes: n}, MaxSelections: int(s.MaxTokens) * topK, MaxExperts: 64}
}

// rank is one rank on the device, with a stream and tensors.
type rank struct {
	*cuda.Buffer
	t       testing.TB
	d       *device.Device
	emu     *cudatest.Driver
	dom     domain.Domain
	self    int
	ranks   int
	stream  uint64
	tensors uint64 // memory that tests see, too
	free    func() error
	used    uint64
	active  *tensor[int32]
}

// tensor is n values that the device and tests see.
type tensor[T any] struct {
	at     uint64
	values []T
}

const tensorBytes = 4 << 20

func newTensor[T any](r *rank, n int) *tensor[T] {
	at := r.tensors + r.used
	values := cudatest.Slice[T](at, n)
	r.used += (uint64(n)*8 + 255) &^ 255
	require.LessOrEqual(r.t, r.used, uint64(tensorBytes))
	return &tensor[T]{at: at, values: values}
}

func openDevice(t testing.TB, emu *cudatest.Driver) (*device.Device, error) {
	return device.Open(emu.Library, 0, emu.Code(t))
}

// newRank makes a rank's buffer, not connected yet.
func newRank(t testing.TB, emu *cudatest.Driver, dom domain.Domain, cfg cuda.Config) *rank {
	d, err := openDevice(t, emu)
	require.NoError(t, err)
	return newRankOn(t, d, emu, dom, cfg)
}

func newRankOn(t testing.TB, d *device.Device, emu *cudatest.Driver, dom domain.Domain, cfg cuda.Config) *rank {
	b, err := cuda.New(dom, d, cfg)
	require.NoError(t, err)
	r := &rank{Buffer: b, t: t, d: d, emu: emu, dom: dom, self: dom.Rank(), ranks: dom.NumRanks()}
	r.must(func() error {
		r.tensors, r.free, err = emu.Shown(tensorBytes)
		return err
	})
	r.must(func() error {
		s, err := emu.StreamCreate(0)
		r.stream = uint64(s)
		return err
	})
	r.active = newTensor[int32](r, r.ranks)
	for i := range r.active.values {
		r.active.values[i] = 1
	}
	return r
}

func (r *rank) must(f func() error) { require.NoError(r.t, r.d.Do(f)) }

func (r *rank) sync() {
	r.must(func() error { return r.emu.StreamSynchronize(libcuda.Stream(r.stream)) })
}

func (r *rank) close() {
	require.NoError(r.t, r.Buffer.Close())
	require.NoError(r.t, r.Buffer.Close())
	r.must(func() error { return r.emu.StreamDestroy(libcuda.Stream(r.stream)) })
	r.must(r.free)
	require.NoError(r.t, r.d.Close())
}

// newGroup makes ranks of this process, connected.
func newGroup(t testing.TB, ranks int) []*rank {
	all := newUnconnected(t, ranks)
	for _, r := range all {
		require.NoError(t, r.Connect(connectIn))
	}
	return all
}

func newUnconnected(t testing.TB, ranks int) []*rank {
	emu := cudatest.Open(t)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	emu.Schedule(rng.Uint64(), 16, 8)
	var all []*rank
	for _, dom := range inproc.New(ranks, layout.ControlBytes) {
		all = append(all, newRank(t, emu, dom, configOf(t, ranks)))
	}
	t.Cleanup(func() { closeAll(all) })
	return all
}

// closeAll closes all at once: each waits for the device, which waits for the
// others' launches.
func closeAll(all []*rank) {
	for _, r := range all {
		r.close()
	}
}

// op is one operation of one rank: its inputs and outputs.
type op struct {
	r      *rank
	args   ep.DispatchArgs
	res    cuda.Result
	combin ep.CombineArgs
	x, out *tensor[uint16]
	ids    *tensor[int64]
	w      *tensor[float32]
}

// newOp draws an operation. Values are small whole numbers and weights halves,
// so that sums are exact in any order.
func newOp(r *rank, rng *rand.Rand) *op {
	s := shapeOf(r.ranks)
	return newOpOf(r, s, 1+rng.IntN(int(s.MaxTokens)), rng)
}

// newOpOf is newOp with so many tokens.
func newOpOf(r *rank, s layout.Shape, tokens int, rng *rand.Rand) *op {
	o := &op{r: r}
	o.x, o.out = newTensor[uint16](r, tokens*int(s.Hidden)), newTensor[uint16](r, tokens*int(s.Hidden))
	o.ids, o.w = newTensor[int64](r, tokens*topK), newTensor[float32](r, tokens*topK)
	for i := range o.x.values {
		o.x.values[i] = bf16(float32(rng.IntN(32) - 16))
	}
	for i := range o.ids.values {
		o.ids.values[i] = rng.Int64N(s.NumExperts+1) - 1
		o.w.values[i] = float32(rng.IntN(4)) / 2
	}
	o.args = ep.DispatchArgs{
		NumTokens: tokens, Hidden: int(s.Hidden), TopK: topK, MaxTokens: int(s.MaxTokens), NumExperts: int(s.NumExperts), Timeout: -1,
		Device: &ep.DeviceDispatch{X: o.x.at, TopkIdx: o.ids.at, ActiveRanks: r.active.at, Stream: r.stream},
	}
	o.combin = ep.CombineArgs{
		NumTokens: tokens, TopK: topK, Timeout: -1,
		Device: &ep.DeviceCombine{
			TopkIdx: o.ids.at, TopkWeights: o.w.at, Out: o.out.at, ActiveRanks: r.active.at, Stream: r.stream,
		},
	}
	return o
}

func bf16(f float32) uint16 { return uint16(math.Float32bits(f) >> 16) }

func float(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// dispatch and combine launch the operation; experts return the rows as they
// came.
func (o *op) dispatch() { require.NoError(o.r.t, o.r.Dispatch(&o.args, &o.res, ep.PhaseDone)) }

func (o *op) combine() {
	o.combin.Device.X = o.res.RecvX
	_, err := o.r.Combine(o.res.Handle, &o.combin, ep.PhaseDone)
	require.NoError(o.r.t, err)
}

func (o *op) run() {
	o.dispatch()
	o.combine()
}

// check compares the sums with those of a plain loop; experts of lost ranks
// contribute nothing.
func (o *op) check(lost ...int) {
	s := shapeOf(o.r.ranks)
	h, local := int(s.Hidden), int(s.NumExperts)/o.r.ranks
	gone := map[int64]bool{-1: true}
	for _, r := range lost {
		for l := range local {
			gone[int64(r*local+l)] = true
		}
	}
	for t := range o.args.NumTokens {
		for j := range h {
			sum := float32(0)
			for k := range topK {
				if !gone[o.ids.values[t*topK+k]] {
					sum += o.w.values[t*topK+k] * float(o.x.values[t*h+j])
				}
			}
			require.Equal(o.r.t, sum, float(o.out.values[t*h+j]), "rank %d token %d value %d", o.r.self, t, j)
		}
	}
}

// checkRows compares what was received with what all ranks sent.
func checkRows(all []*op, at int) {
	o := all[at]
	t, res := o.r.t, &o.res
	h, local, ranks, c := int(res.Slab.Hidden), int(res.Slab.LocalExperts), o.r.ranks, int(res.Slab.RowsPerExpert)
	var counts, info []int32
	var ranges []int64
	var rows []uint16
	o.r.must(func() error {
		counts = cudatest.Read[int32](t, o.r.emu, res.RecvCount, local)
		ranges = cudatest.Read[int64](t, o.r.emu, res.LayoutRange, local*ranks)
		info = cudatest.Read[int32](t, o.r.emu, res.SrcInfo, local*c)
		rows = cudatest.Read[uint16](t, o.r.emu, res.RecvX, local*c*h)
		return nil
	})
	for l := range local {
		total := 0
		for src, from := range all {
			begin, n := int(ranges[l*ranks+src]>>32), int(ranges[l*ranks+src]&0xffffffff)
			want := map[int32]bool{}
			for i, e := range from.ids.values {
				if e == int64(o.r.self*local+l) {
					want[int32(i/topK)] = true
				}
			}
			require.Len(t, want, n, "rows of rank %d", src)
			for i := begin; i < begin+n; i++ {
				token := info[l*c+i]
				require.True(t, want[token])
				delete(want, token)
				require.Equal(t, from.x.values[int(token)*h:][:h], rows[(l*c+i)*h:][:h])
			}
			total += n
		}
		require.EqualValues(t, total, counts[l])
	}
}
