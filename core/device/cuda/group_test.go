package cuda

import (
	"cmp"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// group is several ranks of this process on one device, each with a
// stream of its own.
type group struct {
	t     testing.TB
	d     *Device
	ranks []*member
	// offices are the ranks' ways to other hosts, if any.
	offices []*office
	// fewest and most tokens that random gives a rank; most 0: as many as may be.
	fewest, most int
	// keeps: random leaves the tensors of earlier operations where they are.
	keeps bool
	// what random sends: ordinary values to experts at random, unless set.
	value func(*rand.Rand) uint16
	pick  func(rng *rand.Rand, experts int64, at int) int64
	cpu   device.Kernels
	rng   *rand.Rand // of smallIn
	// copied is what onHost copies into. To free memory waits for all kernels, so it lasts as long as the group.
	copied *Memory
}

// member is one rank and its tensors.
type member struct {
	*Engine
	stream  libcuda.Stream
	tensors *Memory
	used    uint64
	seen    *Memory // the slab as a kernel behind Receive finds it
}

const (
	tensorBytes = 8 << 20
	copiedBytes = uint64(unsafe.Sizeof(state{}))
)

func newGroup(t testing.TB, ranks, slots int, slabBytes int64) *group {
	drv := driver(t)
	d, err := Open(drv.Library, 0, drv.Code(t))
	require.NoError(t, err)
	g := &group{t: t, d: d, value: ordinary, pick: anyExpert}
	g.copied = g.alloc(copiedBytes)
	for r := range ranks {
		g.ranks = append(g.ranks, g.join(r, Config{
			Rank: r, NumRanks: ranks, NumSlots: slots, SlabBytes: slabBytes, MaxSelections: 4096, MaxExperts: 4096,
		}))
	}
	for _, m := range g.ranks {
		for r, peer := range g.ranks {
			require.NoError(t, m.SetPeer(r, peer.Shared()))
		}
		require.NoError(t, m.Join(1))
		m.SetMembers(1<<protocol.EpochShift | (1<<ranks - 1))
	}
	t.Cleanup(g.close)
	g.cpu = g.onCPU()
	return g
}

func (g *group) join(rank int, cfg Config) *member {
	e, err := NewEngine(g.d, cfg)
	require.NoError(g.t, err)
	if !onDevice() {
		e.threads = threads{plan: 64, row: 64, wait: 64} // more would only cost time
	}
	m := &member{Engine: e}
	m.tensors, m.seen = g.alloc(tensorBytes), g.alloc(uint64(cfg.SlabBytes))
	if onDevice() {
		g.showShared(m.Engine)
	}
	g.must(func() (err error) { m.stream, err = g.d.lib.StreamCreate(0); return err })
	return m
}

func (g *group) must(f func() error) { require.NoError(g.t, g.d.do(f)) }

func (g *group) sync() {
	for _, m := range g.ranks {
		g.must(func() error { return g.d.lib.StreamSynchronize(m.stream) })
	}
}

func (g *group) close() {
	for _, m := range g.ranks {
		g.must(func() error { return g.d.lib.StreamDestroy(m.stream) })
		require.NoError(g.t, m.tensors.Close())
		require.NoError(g.t, m.seen.Close())
		require.NoError(g.t, m.Close())
	}
	require.NoError(g.t, g.copied.Close())
	require.NoError(g.t, g.d.Close())
	require.NoError(g.t, g.d.Close())
}

// tensor takes n values of the rank's memory, which tests read and write at its
// address.
func tensor[T any](m *member, n int) (uint64, []T) {
	var zero T
	addr := m.tensors.Address() + m.used
	m.used = (m.used + uint64(n)*uint64(unsafe.Sizeof(zero)) + 255) &^ 255
	if m.used > tensorBytes {
		panic("tensors do not fit")
	}
	return addr, unsafe.Slice(dl.At[T](uintptr(addr)), n)
}

// op is one operation of all ranks: what they send and what must come out.
type op struct {
	shape   layout.Shape
	topK    int
	flags   protocol.Flags
	extra   [][]byte // by rank: the first extra column [T, bytes]
	tokens  []int
	x       [][]uint16 // by rank: bf16 [T, H]
	ids     [][]int64
	kept    [][]int64 // ids of the combine: some may be left out
	w       [][]float32
	calls   []Dispatch
	outs    [][]uint16
	outAt   []uint64
	wAt     []uint64
	keptAt  []uint64 // 0: those of the dispatch
	counts  [][]int32
	ranges  [][]int64
	active  [][]int32
	special bool         // some outputs are infinite, tiny or no number
	lost    map[int]bool // the experts of these ranks contribute nothing

	combineNs uint64 // WaitNs of combines, if dispatches have one
}

func bf16(f float32) uint16 { return uint16(math.Float32bits(f) >> 16) }

func float(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func ordinary(rng *rand.Rand) uint16 { return bf16(float32(rng.NormFloat64())) }

// anyExpert is each expert, or none, as often.
func anyExpert(rng *rand.Rand, experts int64, _ int) int64 { return rng.Int64N(experts+1) - 1 }

// random makes an operation: tokens per rank from 0 to the maximum, repeated
// and absent experts among the selections.
func (g *group) random(rng *rand.Rand, s layout.Shape, topK int, flags protocol.Flags, slot int) *op {
	o := &op{shape: s, topK: topK, flags: flags}
	for _, m := range g.ranks {
		if !g.keeps {
			m.used = 0
		}
		tokens := g.fewest + rng.IntN(cmp.Or(g.most, int(s.MaxTokens))+1-g.fewest)
		c := Dispatch{Call: Call{
			Shape: s, NumTokens: tokens, TopK: topK, Slot: slot, Flags: flags, Stream: uint64(m.stream), TimeoutNs: -1,
		}}
		var x []uint16
		var ids []int64
		var w []float32
		c.X, x = tensor[uint16](m, tokens*int(s.Hidden))
		c.TopkIdx, ids = tensor[int64](m, tokens*topK)
		for i := range x {
			x[i] = g.value(rng)
		}
		wAt, w := tensor[float32](m, tokens*topK)
		c.Weights = wAt
		for i := range ids {
			ids[i], w[i] = g.pick(rng, s.NumExperts, i), rng.Float32()
			if prev := i - 1; i%topK > 0 && ids[i] >= 0 && ids[prev] >= 0 {
				// What is left of two that cancel is what rounding did.
				w[i] = -w[prev] * expertScale(int(ids[prev])) / expertScale(int(ids[i]))
			}
		}
		var counts []int32
		var ranges []int64
		local := int(s.NumExperts / s.NumRanks)
		if s.Flat {
			local = 1
		}
		c.RecvCount, counts = tensor[int32](m, local)
		c.Layout, ranges = tensor[int64](m, local*int(s.NumRanks))
		outAt, out := tensor[uint16](m, tokens*int(s.Hidden))
		if width := s.Columns[layout.ColumnExtra]; width > 0 {
			var extra []byte
			c.Extra[0], extra = tensor[byte](m, tokens*int(width))
			for i := range extra {
				extra[i] = byte(rng.Uint32())
			}
			o.extra = append(o.extra, extra)
		}
		o.kept, o.keptAt = append(o.kept, ids), append(o.keptAt, 0)
		o.tokens, o.x, o.ids, o.w = append(o.tokens, tokens), append(o.x, x), append(o.ids, ids), append(o.w, w)
		o.calls, o.outs, o.outAt, o.wAt = append(o.calls, c), append(o.outs, out), append(o.outAt, outAt), append(o.wAt, wAt)
		o.counts, o.ranges = append(o.counts, counts), append(o.ranges, ranges)
	}
	return o
}

// snapshot copies rank r's slab when its receive is over, and not later.
func (g *group) snapshot(m *member, slot int) {
	g.must(func() error {
		return g.d.lib.CopyAsync(m.seen.addr, libcuda.DevicePtr(m.Slab(slot)), uint64(m.cfg.SlabBytes), m.stream)
	})
}

// combine is rank r's combine of the operation.
func (o *op) combine(r int, outputs uint64) *Combine {
	c := &Combine{Call: o.calls[r].Call, Outputs: outputs, Weights: o.wAt[r], Out: o.outAt[r]}
	if c.WaitNs != 0 {
		c.WaitNs = o.combineNs
	}
	if o.keptAt[r] != 0 {
		c.TopkIdx = o.keptAt[r]
	}
	return c
}

// leaveOut takes some selections out of the combine.
func (o *op) leaveOut(g *group, rng *rand.Rand) {
	for r, m := range g.ranks {
		o.keptAt[r], o.kept[r] = tensor[int64](m, len(o.ids[r]))
		for i, e := range o.ids[r] {
			if o.kept[r][i] = e; rng.IntN(3) == 0 {
				o.kept[r][i] = -1
			}
		}
	}
}

// checkRows compares what rank r received with what was sent.
func (o *op) checkRows(t testing.TB, m *member, r int) {
	s, err := layout.Of(o.shape)
	require.NoError(t, err)
	base := uintptr(m.seen.Address())
	local := int(s.LocalExperts) // blocks of rows
	for l := range local {
		total, latest := 0, -1
		seen := map[int]bool{}
		for src := range o.tokens {
			at := o.ranges[r][l*len(o.tokens)+src]
			begin, n := int(at>>32), int(at&0xffffffff)
			want := o.sentTo(src, r*local+l)
			require.Len(t, want, n, "rows of rank %d for expert %d of rank %d", src, l, r)
			if o.flags&protocol.FlagOrdered != 0 && n > 0 {
				require.Equal(t, total, begin, "rows of rank %d", src)
				latest = -1
			}
			total += n
			for i := begin; i < begin+n; i++ {
				require.False(t, seen[i], "row %d is two ranks'", i)
				seen[i] = true
				row := int64(l)*s.RowsPerExpert + int64(i)
				token := int(*dl.At[int32](base + uintptr(s.SrcInfoOff+4*row)))
				require.True(t, want[token], "token %d of rank %d", token, src)
				if o.flags&protocol.FlagOrdered != 0 {
					require.Greater(t, token, latest)
					latest = token
				}
				delete(want, token)
				got := unsafe.Slice(dl.At[byte](base+uintptr(s.RowsOff+row*s.RowBytes)), s.RowBytes)
				o.checkColumns(t, base, &s, r, src, token, i)
				o.checkRow(t, got, base, &s, int64(l), int64(i), o.x[src][token*int(s.Hidden):][:s.Hidden])
			}
		}
		require.EqualValues(t, total, o.counts[r][l])
	}
}

// sentTo are the tokens of a rank that have a row in a block: those that selected
// an expert, or some expert of a rank.
func (o *op) sentTo(src, block int) map[int]bool {
	tokens := map[int]bool{}
	for i, e := range o.ids[src] {
		if o.shape.Flat && e >= 0 {
			e /= o.shape.NumExperts / o.shape.NumRanks
		}
		if e == int64(block) {
			tokens[i/o.topK] = true
		}
	}
	return tokens
}

func (o *op) checkRow(t testing.TB, got []byte, base uintptr, s *layout.Slab, l, i int64, x []uint16) {
	if o.flags&protocol.FlagFP8 == 0 {
		want := make([]byte, len(got))
		for j, v := range x {
			binary.LittleEndian.PutUint16(want[2*j:], v)
		}
		require.Equal(t, want, got)
		return
	}
	for g := range len(x) / 128 {
		codes, scale := castBlock(x[128*g:][:128], o.flags&(protocol.FlagPow2|protocol.FlagUE8M0) != 0)
		require.Equal(t, codes, got[128*g:][:128], "values %v", x[128*g:][:128])
		o.checkScale(t, base, s, l, i, g, scale)
	}
}

// checkScale compares one scale of a row: a word of its own, or a byte of one.
func (o *op) checkScale(t testing.TB, base uintptr, s *layout.Slab, l, i int64, g int, bits uint32) {
	word, shift, mask := int64(g), 0, uint32(math.MaxUint32)
	if s.RowType == protocol.FP8UE8M0 {
		word, shift, mask, bits = int64(g/4), g%4*8, 0xff, bits>>23
	}
	at := s.ScalesOff + ((l*s.Groups()+word)*s.RowsPerExpert+i)*4
	require.Equal(t, bits, *dl.At[uint32](base + uintptr(at))>>shift&mask, "scale %d", g)
}

// writeOutputs makes rank r's expert outputs: expert e multiplies a row's first
// values by something of its own, so that every row differs. It writes them
// where the address says, and returns them by row.
func (o *op) writeOutputs(m *member, r int, at uint64) {
	s, _ := layout.Of(o.shape)
	for l := range s.LocalExperts {
		for i := range int64(o.counts[r][l]) {
			row := l*s.RowsPerExpert + i
			token := *dl.At[int32](uintptr(m.Slab(o.calls[r].Slot)) + uintptr(s.SrcInfoOff+4*row))
			src := o.sourceOf(r, int(l), int(i))
			for j := range int(s.Hidden) {
				v := o.output(src, int(token), r*int(s.LocalExperts)+int(l), j)
				if s.OutputType == protocol.FP32 {
					*dl.At[float32](uintptr(at) + uintptr(row*s.OutputBytes()) + uintptr(4*j)) = v
				} else {
					*dl.At[uint16](uintptr(at) + uintptr(row*s.OutputBytes()) + uintptr(2*j)) = bf16(v)
				}
			}
		}
	}
}

func (o *op) sourceOf(r, l, i int) int {
	for src := range o.tokens {
		at := o.ranges[r][l*len(o.tokens)+src]
		if begin, n := int(at>>32), int(at&0xffffffff); i >= begin && i < begin+n {
			return src
		}
	}
	return -1
}

// output is what an expert makes of a token: values that differ, times a power
// of two of the expert's, so that weights can make the sums cancel. Where it is
// special, some are no numbers. It has the digits of the outputs' type.
func (o *op) output(src, token, expert, j int) float32 {
	h := uint32(src*7919+token*104729+j*31+1) * 2654435761
	if o.special && h%61 == 0 {
		return float(edges[int(h>>8)%len(edges)])
	}
	v := math.Float32frombits(h>>9|0x3f800000) * expertScale(expert)
	if o.flags&protocol.FlagFP32Outputs == 0 {
		v = float(bf16(v))
	}
	return v
}

func expertScale(expert int) float32 { return float32(int(1) << (expert % 5)) }

// checkSums compares the results of rank r with sums of its own.
func (o *op) checkSums(t testing.TB, r int) {
	h := int(o.shape.Hidden)
	for token := range o.tokens[r] {
		for j := range h {
			sum := o.sum(r, token, func(e int64) float32 { return o.output(r, token, int(e), j) })
			require.Equal(t, rounded(sum), o.outs[r][token*h+j], "rank %d token %d value %d", r, token, j)
		}
	}
}

// sum adds a token's rows up, by what an expert has made of it.
func (o *op) sum(r, token int, value func(expert int64) float32) float32 {
	if o.shape.Flat {
		return o.flatSum(r, token, value)
	}
	ids, w := o.kept[r][token*o.topK:][:o.topK], o.w[r][token*o.topK:][:o.topK]
	of := func(keep func(int64) bool) (sum float32) {
		for k, e := range ids {
			if e >= 0 && !o.isLost(e) && keep(e) {
				sum += float32(w[k] * value(e))
			}
		}
		return sum
	}
	if o.flags&protocol.FlagPreReduce == 0 {
		return of(func(int64) bool { return true })
	}
	all, seen, local := float32(0), map[int64]bool{}, o.shape.NumExperts/o.shape.NumRanks
	for _, e := range ids {
		if e < 0 || seen[e/local] {
			continue
		}
		seen[e/local] = true
		part := of(func(other int64) bool { return other/local == e/local })
		if o.flags&protocol.FlagFP32Outputs == 0 {
			part = float(rounded(part))
		}
		all += part
	}
	return all
}

// forget makes a rank's experts contribute nothing.
func (o *op) forget(rank int) {
	if o.lost == nil {
		o.lost = map[int]bool{}
	}
	o.lost[rank] = true
}

func (o *op) isLost(expert int64) bool {
	return o.lost[int(expert/(o.shape.NumExperts/o.shape.NumRanks))]
}
