package cpu

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep/protocol"
)

// The kernels know so many types. A new one needs arithmetic here, in the C kernels (native.go
// chooses them) and in package cuda.
var _ = [1]struct{}{protocol.Unknown - 5: {}}

// tileValues is how many sums Reduce keeps at a time: they stay in L1.
const tileValues = 256

// reference is the plain Go implementation: the one the race detector sees,
// and the only one without cgo.
type reference struct {
	sums   [tileValues]float32
	run    [tileValues]float32 // of one source
	rows   []byte              // [T, H]: rows cast by this batch
	scales []uint32            // [T, words]: float32 bits, or four exponents each
	done   []bool              // [T]
}

// NewReference returns the plain Go kernels.
func NewReference() device.Kernels { return &reference{} }

func (r *reference) Name() string { return "cpu/go" }

// Close has nothing to end.
func (r *reference) Close() {}

func (r *reference) Place(b *device.PlaceBatch) {
	if b.RowType.IsFP8() && b.Hidden > 0 {
		r.beginCast(len(b.X)/(2*b.Hidden), b)
	}
	for i := range b.Jobs {
		j := &b.Jobs[i]
		x := b.X[int(j.Token)*2*b.Hidden:][:2*b.Hidden]
		if !b.RowType.IsFP8() {
			storeRow(&b.Targets[j.Target], j, x)
			continue
		}
		row, scales := r.cast(int(j.Token), x, b.RowType)
		storeRow(&b.Targets[j.Target], j, row)
		storeScales(&b.Targets[j.Target], j, scales)
	}
}

func (r *reference) beginCast(tokens int, b *device.PlaceBatch) {
	r.rows = atLeast(r.rows, tokens*b.Hidden)
	r.scales = atLeast(r.scales, tokens*int(b.RowType.ScaleWords(int64(b.Hidden))))
	r.done = atLeast(r.done, tokens)
	clear(r.done)
}

// cast returns a token's row and scale words; it computes them once per batch.
func (r *reference) cast(token int, x []byte, d protocol.DType) ([]byte, []uint32) {
	hidden := len(x) / 2
	words := int(d.ScaleWords(int64(hidden)))
	row, scales := r.rows[token*hidden:][:hidden], r.scales[token*words:][:words]
	if !r.done[token] {
		r.done[token] = true
		quantiseRow(row, scales, x, d)
	}
	return row, scales
}

func storeRow(t *device.Target, j *device.PlaceJob, row []byte) {
	at := int(j.Expert)*t.RowsPerExpert + int(j.Pos)
	copy(t.Rows[at*len(row):][:len(row)], row)
	binary.LittleEndian.PutUint32(t.SrcInfo[4*at:], uint32(j.Token))
}

func storeScales(t *device.Target, j *device.PlaceJob, scales []uint32) {
	for g, s := range scales {
		at := (int(j.Expert)*len(scales)+g)*t.RowsPerExpert + int(j.Pos)
		binary.LittleEndian.PutUint32(t.Scales[4*at:], s)
	}
}

// quantiseRow fills q and the scale words from one bf16 row.
func quantiseRow(q []byte, scales []uint32, x []byte, d protocol.DType) {
	const n = protocol.QuantBlock
	clear(scales)
	for g := range len(q) / n {
		s := math.Float32bits(quantiseBlock(q[g*n:][:n], x[2*g*n:][:2*n], d))
		if d == protocol.FP8UE8M0 {
			scales[g/4] |= s >> 23 << (8 * (g % 4))
		} else {
			scales[g] = s
		}
	}
}

// quantiseBlock casts one block and returns the scale to store with it. The
// block's largest magnitude is found by bits, so that a NaN or an infinity
// wins; the rest follows from IEEE arithmetic (docs/numerics.md).
func quantiseBlock(q, x []byte, d protocol.DType) float32 {
	var bits uint16
	for i := range q {
		bits = max(bits, binary.LittleEndian.Uint16(x[2*i:])&0x7fff)
	}
	amax := fromBF16(bits)
	if amax < 1e-4 {
		amax = 1e-4
	}
	scale, stored := float32(e4m3Max/amax), float32(amax/e4m3Max)
	if d != protocol.FP8 {
		stored = ceilPow2(stored)
		scale = 1 / stored
	}
	for i := range q {
		q[i] = toE4M3(float32(fromBF16(binary.LittleEndian.Uint16(x[2*i:])) * scale))
	}
	if bits > bf16Inf {
		return math.Float32frombits(bf16NaN << 16)
	}
	return stored
}

// ceilPow2 is the least power of two that is not below f, which is positive
// and normal; infinity and NaN stay what they are.
func ceilPow2(f float32) float32 {
	const fraction = 1<<23 - 1
	u := math.Float32bits(f)
	if u >= 0x7f800000 {
		return f
	}
	return math.Float32frombits((u + fraction) &^ fraction)
}

func (r *reference) Reduce(b *device.ReduceBatch) {
	if b.Hidden == 0 {
		return
	}
	row := b.OutRowBytes()
	for t := range len(b.Out) / row {
		out := b.Out[t*row:][:row]
		for at := 0; at < b.Hidden; at += tileValues {
			n := min(tileValues, b.Hidden-at)
			r.reduceTile(b, t, at, n)
			r.storeTile(out[at*(row/b.Hidden):], n, b.OutType)
		}
	}
}

// reduceTile computes n values of token t, from value number at on, in r.sums.
func (r *reference) reduceTile(b *device.ReduceBatch, t, at, n int) {
	sums, run, source := r.sums[:n], r.run[:n], int32(-1)
	clear(sums)
	clear(run)
	add := addBF16
	if b.RowType == protocol.FP32 {
		add = addFloat32
	}
	for k, w := range b.Weights[t*b.TopK:][:b.TopK] {
		j := b.Jobs[t*b.TopK+k]
		if j.Source < 0 {
			continue
		}
		if b.Runs && j.Source != source {
			endRun(sums, run, b.RowType)
			source = j.Source
		}
		add(run, w, b.Sources[j.Source], int(j.Row)*b.Hidden+at)
	}
	if b.Runs {
		endRun(sums, run, b.RowType)
	} else {
		copy(sums, run)
	}
}

// endRun adds the sum of a run, rounded, and begins another one.
func endRun(sums, run []float32, rows protocol.DType) {
	for i, v := range run {
		if rows == protocol.BF16 {
			v = fromBF16(toBF16(v))
		}
		sums[i] = float32(sums[i] + v)
	}
	clear(run)
}

func (r *reference) storeTile(out []byte, n int, d protocol.DType) {
	for i, s := range r.sums[:n] {
		if d == protocol.BF16 {
			binary.LittleEndian.PutUint16(out[2*i:], toBF16(s))
			continue
		}
		u := math.Float32bits(s)
		if s != s {
			u = bf16NaN << 16
		}
		binary.LittleEndian.PutUint32(out[4*i:], u)
	}
}

// addBF16 adds w times the values from first on.
func addBF16(sums []float32, w float32, source []byte, first int) {
	values := source[2*first:][:2*len(sums)]
	for i := range sums {
		v := fromBF16(binary.LittleEndian.Uint16(values[2*i:]))
		sums[i] = float32(sums[i] + float32(w*v))
	}
}

// addFloat32 is addBF16 for an fp32 source.
func addFloat32(sums []float32, w float32, source []byte, first int) {
	values := source[4*first:][:4*len(sums)]
	for i := range sums {
		v := math.Float32frombits(binary.LittleEndian.Uint32(values[4*i:]))
		sums[i] = float32(sums[i] + float32(w*v))
	}
}

func (r *reference) Copy(jobs []device.CopyJob) {
	for i := range jobs {
		copy(jobs[i].Dst, jobs[i].Src)
	}
}

// Dequantise implements Dequantiser.
func (r *reference) Dequantise(b *DequantBatch) {
	for _, rg := range b.Ranges {
		for i := range int(rg.Count) {
			dequantiseRow(b, int(rg.Expert), int(rg.Pos)+i, int(rg.DstRow)+i)
		}
	}
}

func dequantiseRow(b *DequantBatch, expert, pos, dstRow int) {
	out := b.Dst[dstRow*2*b.Hidden:][:2*b.Hidden]
	in := b.Rows[(expert*b.RowsPerExpert+pos)*b.Hidden:][:b.Hidden]
	groups := b.Hidden / protocol.QuantBlock
	for i, c := range in {
		at := (expert*groups+i/protocol.QuantBlock)*b.RowsPerExpert + pos
		scale := math.Float32frombits(binary.LittleEndian.Uint32(b.Scales[4*at:]))
		binary.LittleEndian.PutUint16(out[2*i:], toBF16(float32(scale*fromE4M3Table[c])))
	}
}

// atLeast returns s, or a longer slice when s has fewer than n elements.
func atLeast[T any](s []T, n int) []T {
	if len(s) >= n {
		return s
	}
	return make([]T, n)
}
