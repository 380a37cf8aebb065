package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// reduceAndCheck runs the batch on every implementation, against the oracle.
func reduceAndCheck(t *testing.T, b *device.ReduceBatch) {
	t.Helper()
	want := oracleReduceBatch(b)
	for _, k := range all(t) {
		fill(b.Out, 0xee)
		k.Reduce(b)
		for i, w := range want {
			if got := bf16At(b.Out, i); got != w {
				t.Fatalf("%s: token %d value %d is %#04x, want %#04x (weights %v)", k.Name(),
					i/b.Hidden, i%b.Hidden, got, w, b.Weights[i/b.Hidden*b.TopK:][:b.TopK])
			}
		}
	}
}

func oracleReduceBatch(b *device.ReduceBatch) []uint16 {
	want := make([]uint16, len(b.Out)/2)
	weights := make([]float32, 0, b.TopK)
	values := make([]float32, 0, b.TopK)
	for i := range want {
		weights, values = weights[:0], values[:0]
		for k := range b.TopK {
			at := i/b.Hidden*b.TopK + k
			if j := b.Jobs[at]; j.Source >= 0 {
				weights = append(weights, b.Weights[at])
				values = append(values, sourceValue(b, j.Source, int(j.Row)*b.Hidden+i%b.Hidden))
			}
		}
		want[i] = oracleReduce(weights, values)
	}
	return want
}

// sourceValue is a value of a source, whichever type it has.
func sourceValue(b *device.ReduceBatch, source int32, i int) float32 {
	if b.RowType == protocol.FP32 {
		return math.Float32frombits(u32At(b.Sources[source], i))
	}
	return math.Float32frombits(uint32(bf16At(b.Sources[source], i)) << 16)
}

// randomReduce draws a batch; holes says whether some jobs are empty.
func randomReduce(t testing.TB, r *rand.Rand, tokens, hidden, topK int, holes bool, draw func(*rand.Rand) uint16) *device.ReduceBatch {
	const numSources, rows = 3, 4
	b := &device.ReduceBatch{
		Out: offHeap(t, 2*tokens*hidden), Hidden: hidden, TopK: topK,
		Jobs:    make([]device.ReduceJob, tokens*topK),
		Weights: make([]float32, tokens*topK),
	}
	for range numSources {
		values := make([]uint16, rows*hidden)
		for i := range values {
			values[i] = draw(r)
		}
		b.Sources = append(b.Sources, offHeapBF16(t, values))
	}
	for i := range b.Jobs {
		b.Jobs[i] = device.ReduceJob{Source: int32(r.IntN(numSources)), Row: int64(r.IntN(rows))}
		if holes && r.IntN(4) == 0 {
			b.Jobs[i] = device.ReduceJob{Source: -1, Row: 1 << 40}
		}
		b.Weights[i] = r.Float32()
	}
	return b
}

// Every tail length at every width, and the guard page behind each buffer.
func TestReduceShapes(t *testing.T) {
	r := newRand(t)
	for _, hidden := range []int{8, 16, 24, 32, 40, 56, 64, 72, 120, 128, 136, 248, 256, 264, 520, 1032, 7168} {
		for _, topK := range []int{1, 2, 8, 33} {
			tokens := 1 + 64/hidden
			reduceAndCheck(t, randomReduce(t, r, tokens, hidden, topK, true, activation))
		}
	}
}

func TestReduceAnyBits(t *testing.T) {
	r := newRand(t)
	weights := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 1e-40, 1e38, -1e38,
		float32(math.Inf(1)), float32(math.NaN()), 0x1p-126, 0x1p-149}
	for range 60 {
		b := randomReduce(t, r, 2, 8*(1+r.IntN(40)), 1+r.IntN(4), true, anyBF16)
		for i := range b.Weights {
			if r.IntN(2) == 0 {
				b.Weights[i] = weights[r.IntN(len(weights))]
			}
		}
		reduceAndCheck(t, b)
	}
}

// Every bf16 bit pattern, alone (weight 1 and a subnormal-making weight) and
// added to another value.
func TestReduceEveryPattern(t *testing.T) {
	const hidden = 1 << 16
	values := make([]uint16, 2*hidden)
	for i := range hidden {
		values[i] = uint16(i)
		values[hidden+i] = uint16(i*40503 + 12345)
	}
	rows := offHeapBF16(t, values)
	for _, w := range [][2]float32{{1, 0}, {0x1p-126, 0}, {1, 1}, {0.3, -0.7}, {3, 1e-20}} {
		b := &device.ReduceBatch{
			Out: offHeap(t, 2*hidden), Hidden: hidden, TopK: 2, Sources: [][]byte{rows},
			Jobs: []device.ReduceJob{{Row: 0}, {Row: 1}}, Weights: w[:],
		}
		if w[1] == 0 {
			b.Jobs[1].Source = -1
		}
		reduceAndCheck(t, b)
	}
}

// The rules of the contract, one by one.
func TestReduceTable(t *testing.T) {
	const none = 0xdead // no source
	tests := []struct {
		name    string
		values  []uint16
		weights []float32
		want    uint16
	}{
		{"nothing", []uint16{none, none}, []float32{1, 1}, 0x0000},
		{"a NaN weight without a source", []uint16{none, 0x3f80}, []float32{float32(math.NaN()), 1}, 0x3f80},
		{"minus zero joins +0", []uint16{0x8000}, []float32{1}, 0x0000},
		{"infinity less infinity", []uint16{0x7f80, 0xff80}, []float32{1, 1}, 0x7fc0},
		{"zero times infinity", []uint16{0xff80}, []float32{0}, 0x7fc0},
		{"negative NaN", []uint16{0xffff}, []float32{1}, 0x7fc0},
		{"overflow", []uint16{0x7f7f, 0x7f7f}, []float32{1, 1}, 0x7f80},
		{"rounds up to infinity", []uint16{0x7f7f, 0x7b00}, []float32{1, 1}, 0x7f80},
		{"subnormal kept", []uint16{0x0001}, []float32{1}, 0x0001},
		{"subnormal sum", []uint16{0x0040, 0x0041}, []float32{1, 1}, 0x0081},
		{"tie to even", []uint16{0x3f80, 0x3b80}, []float32{1, 1}, 0x3f80},
		{"order of k", []uint16{0x7f00, 0x7f00, 0xff00}, []float32{1, 1, 1}, 0x7f80},
		// 0x1.000002p0 * 0x1.02p0 loses its last bit, which a fused sum would show.
		{"no fused product", []uint16{0xbf81, 0x3f81}, []float32{1, 0x1.000002p0}, 0x3400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reduceTableCase(t, tt.values, none, tt.weights, tt.want)
		})
	}
}

func reduceTableCase(t *testing.T, values []uint16, none uint16, weights []float32, want uint16) {
	const hidden = 24 // whole vectors, and a tail at the two larger widths
	b := &device.ReduceBatch{
		Out: offHeap(t, 2*hidden), Hidden: hidden, TopK: len(values), Weights: weights,
	}
	for _, v := range values {
		row := make([]uint16, hidden)
		for i := range row {
			row[i] = v
		}
		j := device.ReduceJob{Source: int32(len(b.Sources))}
		if v == none {
			j.Source = -1
		}
		b.Sources = append(b.Sources, offHeapBF16(t, row))
		b.Jobs = append(b.Jobs, j)
	}
	for _, k := range all(t) {
		k.Reduce(b)
		for i := range hidden {
			if got := bf16At(b.Out, i); got != want {
				t.Fatalf("%s: value %d is %#04x, want %#04x", k.Name(), i, got, want)
			}
		}
	}
	reduceAndCheck(t, b)
}

func TestReduceRandom(t *testing.T) {
	r := newRand(t)
	for range 30 {
		tokens, hidden, topK := 1+r.IntN(4), 8*(1+r.IntN(200)), 1+r.IntN(10)
		t.Run(fmt.Sprintf("%dx%dx%d", tokens, hidden, topK), func(t *testing.T) {
			reduceAndCheck(t, randomReduce(t, r, tokens, hidden, topK, r.IntN(2) == 0, activation))
		})
	}
}
