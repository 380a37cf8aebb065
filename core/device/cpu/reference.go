package cpu

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/device"
)

// tileValues is how many sums Reduce keeps at a time: they stay in L1.
const tileValues = 256

// reference is the plain Go implementation: the one the race detector sees,
// and the only one without cgo.
type reference struct {
	sums   [tileValues]float32
	rows   []byte    // [T, H]: rows cast by this batch
	scales []float32 // [T, H/128]
	done   []bool    // [T]
}

// NewReference returns the plain Go kernels.
func NewReference() device.Kernels { return &reference{} }

func (r *reference) Name() string { return "cpu/go" }

func (r *reference) Place(b *device.PlaceBatch) {
	if b.CastFP8 && b.Hidden > 0 {
		r.beginCast(len(b.X)/(2*b.Hidden), b.Hidden)
	}
	for i := range b.Jobs {
		j := &b.Jobs[i]
		x := b.X[int(j.Token)*2*b.Hidden:][:2*b.Hidden]
		if !b.CastFP8 {
			storeRow(&b.Targets[j.Target], j, x)
			continue
		}
		row, scales := r.cast(int(j.Token), x)
		storeRow(&b.Targets[j.Target], j, row)
		storeScales(&b.Targets[j.Target], j, scales)
	}
}

func (r *reference) beginCast(tokens, hidden int) {
	r.rows = atLeast(r.rows, tokens*hidden)
	r.scales = atLeast(r.scales, tokens*hidden/device.QuantBlock)
	r.done = atLeast(r.done, tokens)
	clear(r.done)
}

// cast returns a token's row and scales; it computes them once per batch.
func (r *reference) cast(token int, x []byte) ([]byte, []float32) {
	hidden := len(x) / 2
	groups := hidden / device.QuantBlock
	row, scales := r.rows[token*hidden:][:hidden], r.scales[token*groups:][:groups]
	if !r.done[token] {
		r.done[token] = true
		quantiseRow(row, scales, x)
	}
	return row, scales
}

func storeRow(t *device.Target, j *device.PlaceJob, row []byte) {
	at := int(j.Expert)*t.RowsPerExpert + int(j.Pos)
	copy(t.Rows[at*len(row):][:len(row)], row)
	binary.LittleEndian.PutUint32(t.SrcInfo[4*at:], uint32(j.Token))
}

func storeScales(t *device.Target, j *device.PlaceJob, scales []float32) {
	for g, s := range scales {
		at := (int(j.Expert)*len(scales)+g)*t.RowsPerExpert + int(j.Pos)
		binary.LittleEndian.PutUint32(t.Scales[4*at:], math.Float32bits(s))
	}
}

// quantiseRow fills q and scales from one bf16 row.
func quantiseRow(q []byte, scales []float32, x []byte) {
	for g := range scales {
		const n = device.QuantBlock
		scales[g] = quantiseBlock(q[g*n:][:n], x[2*g*n:][:2*n])
	}
}

// quantiseBlock casts one block and returns the scale to store with it. The
// block's largest magnitude is found by bits, so that a NaN or an infinity
// wins; the rest follows from IEEE arithmetic (docs/numerics.md).
func quantiseBlock(q, x []byte) float32 {
	var bits uint16
	for i := range q {
		bits = max(bits, binary.LittleEndian.Uint16(x[2*i:])&0x7fff)
	}
	amax := fromBF16(bits)
	if amax < 1e-4 {
		amax = 1e-4
	}
	scale := float32(e4m3Max / amax)
	for i := range q {
		q[i] = toE4M3(float32(fromBF16(binary.LittleEndian.Uint16(x[2*i:])) * scale))
	}
	if bits > bf16Inf {
		return math.Float32frombits(bf16NaN << 16)
	}
	return float32(amax / e4m3Max)
}

func (r *reference) Reduce(b *device.ReduceBatch) {
	if b.Hidden == 0 {
		return
	}
	rowBytes := 2 * b.Hidden
	for t := range len(b.Out) / rowBytes {
		out := b.Out[t*rowBytes:][:rowBytes]
		jobs := b.Jobs[t*b.TopK:][:b.TopK]
		weights := b.Weights[t*b.TopK:][:b.TopK]
		for at := 0; at < rowBytes; at += 2 * tileValues {
			r.reduceTile(out[at:min(at+2*tileValues, rowBytes)], at, rowBytes, b.Sources, jobs, weights)
		}
	}
}

// reduceTile computes the bytes from at on of one output row, as many as out
// has.
func (r *reference) reduceTile(out []byte, at, rowBytes int, sources [][]byte, jobs []device.ReduceJob, weights []float32) {
	sums := r.sums[:len(out)/2]
	clear(sums)
	for k, w := range weights {
		if jobs[k].Source < 0 {
			continue
		}
		row := sources[jobs[k].Source][int(jobs[k].Row)*rowBytes+at:][:len(out)]
		for i := range sums {
			v := fromBF16(binary.LittleEndian.Uint16(row[2*i:]))
			sums[i] = float32(sums[i] + float32(w*v))
		}
	}
	for i, s := range sums {
		binary.LittleEndian.PutUint16(out[2*i:], toBF16(s))
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
	groups := b.Hidden / device.QuantBlock
	for i, c := range in {
		at := (expert*groups+i/device.QuantBlock)*b.RowsPerExpert + pos
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
