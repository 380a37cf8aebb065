package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// offHeapFloat32 returns off-heap memory that holds the values.
func offHeapFloat32(t testing.TB, values []uint32) []byte {
	b := offHeap(t, 4*len(values))
	for i, v := range values {
		binary.LittleEndian.PutUint32(b[4*i:], v)
	}
	return b
}

// fp32Edges are the float32 values at which something changes, besides those
// that bf16 has.
var fp32Edges = []uint32{
	0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800001, // about subnormal
	0x00007fff, 0x00008000, 0x00008001, 0x00018000, // ties of subnormals
	0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000, // ties
	0x7f7f7fff, 0x7f7f8000, 0xff7fffff, // about the largest bf16
	0x7f800001, 0xff800001, 0x7fbfffff, 0xffffffff, 0x7f808000, // NaNs
}

// anyFloat32 is any bit pattern, an edge more often than chance would have it.
func anyFloat32(r *rand.Rand) uint32 {
	switch r.IntN(8) {
	case 0:
		return fp32Edges[r.IntN(len(fp32Edges))]
	case 1:
		return uint32(edges[r.IntN(len(edges))]) << 16
	}
	return r.Uint32()
}

// valueType is that of float32 values, or of bf16 ones.
func valueType(fp32 bool) protocol.DType {
	if fp32 {
		return protocol.FP32
	}
	return protocol.BF16
}

// fp32Activation is an ordinary finite value with all its digits.
func fp32Activation(r *rand.Rand) uint32 {
	return math.Float32bits(float32(r.NormFloat64() * math.Exp2(float64(r.IntN(6)-3))))
}

// randomFP32 draws a batch as randomReduce does, with float32 rows.
func randomFP32(t testing.TB, r *rand.Rand, tokens, hidden, topK int, draw func(*rand.Rand) uint32) *device.ReduceBatch {
	b := randomReduce(t, r, tokens, hidden, topK, true, activation)
	b.RowType = protocol.FP32
	for i, narrow := range b.Sources {
		values := make([]uint32, len(narrow)/2)
		for j := range values {
			values[j] = draw(r)
		}
		b.Sources[i] = offHeapFloat32(t, values)
	}
	return b
}

// Every tail length at every width, and the guard page behind each buffer.
func TestReduceFP32Shapes(t *testing.T) {
	r := newRand(t)
	for hidden := 1; hidden <= 144; hidden++ {
		reduceAndCheck(t, randomFP32(t, r, 2, hidden, 1+hidden%5, fp32Activation))
	}
	for _, hidden := range []int{248, 256, 264, 520, 1032, 7168} {
		for _, topK := range []int{1, 8, 33} {
			reduceAndCheck(t, randomFP32(t, r, 1, hidden, topK, fp32Activation))
		}
	}
}

func TestReduceFP32AnyBits(t *testing.T) {
	r := newRand(t)
	weights := []float32{0, float32(math.Copysign(0, -1)), 1, -1, 1e-40, 1e38, -1e38,
		float32(math.Inf(1)), float32(math.NaN()), 0x1p-126, 0x1p-149}
	for range 100 {
		b := randomFP32(t, r, 2, 1+r.IntN(320), 1+r.IntN(4), anyFloat32)
		for i := range b.Weights {
			if r.IntN(2) == 0 {
				b.Weights[i] = weights[r.IntN(len(weights))]
			}
		}
		reduceAndCheck(t, b)
	}
}

// One value with each upper half, and about every rounding of its lower half.
func TestReduceFP32RoundsEveryPattern(t *testing.T) {
	const hidden = 1 << 16
	for _, low := range []uint32{0, 1, 0x7fff, 0x8000, 0x8001, 0xffff} {
		values := make([]uint32, hidden)
		for i := range values {
			values[i] = uint32(i)<<16 | low
		}
		reduceAndCheck(t, &device.ReduceBatch{
			Out: offHeap(t, 2*hidden), Hidden: hidden, TopK: 1, RowType: protocol.FP32,
			Sources: [][]byte{offHeapFloat32(t, values)},
			Jobs:    []device.ReduceJob{{}}, Weights: []float32{1},
		})
	}
}

// The rules of the contract, one by one.
func TestReduceFP32Table(t *testing.T) {
	for _, tt := range []struct {
		name    string
		values  []uint32
		weights []float32
		want    uint16
	}{
		{"one rounding", []uint32{0x3f808001}, []float32{1}, 0x3f81},
		{"tie to even", []uint32{0x3f808000}, []float32{1}, 0x3f80},
		{"tie to even, upwards", []uint32{0x3f818000}, []float32{1}, 0x3f82},
		{"digits below bf16 add up", []uint32{0x3f804000, 0x3b800000}, []float32{1, 1}, 0x3f81},
		{"minus zero joins +0", []uint32{0x80000000}, []float32{1}, 0x0000},
		{"infinity less infinity", []uint32{0x7f800000, 0xff800000}, []float32{1, 1}, 0x7fc0},
		{"zero times infinity", []uint32{0xff800000}, []float32{0}, 0x7fc0},
		{"NaN below bf16's digits", []uint32{0xff800001}, []float32{1}, 0x7fc0},
		{"overflow", []uint32{0x7f7fffff, 0x7f7fffff}, []float32{1, 1}, 0x7f80},
		{"rounds up to infinity", []uint32{0x7f7f8000}, []float32{1}, 0x7f80},
		{"subnormal kept", []uint32{0x00018000}, []float32{1}, 0x0002},
		{"subnormals below bf16's add up", []uint32{0x00008000, 0x00004000}, []float32{1, 1}, 0x0001},
		// 0x1.000002p0 * 0x1.000002p0 loses its last bit, which a fused sum would show.
		{"no fused product", []uint32{0xbf800002, 0x3f800001}, []float32{1, 0x1.000002p0}, 0x0000},
	} {
		t.Run(tt.name, func(t *testing.T) { fp32TableCase(t, tt.values, tt.weights, tt.want) })
	}
}

func fp32TableCase(t *testing.T, values []uint32, weights []float32, want uint16) {
	const hidden = 91 // a tile and a tail at every width
	b := &device.ReduceBatch{
		Out: offHeap(t, 2*hidden), Hidden: hidden, TopK: len(values), Weights: weights, RowType: protocol.FP32,
	}
	for i, v := range values {
		row := make([]uint32, hidden)
		for j := range row {
			row[j] = v
		}
		b.Sources = append(b.Sources, offHeapFloat32(t, row))
		b.Jobs = append(b.Jobs, device.ReduceJob{Source: int32(i)})
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
