package cpu

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/moewire/moewire/core/device"
)

// Sizes of a large model's decode step.
const (
	benchTokens = 128
	benchHidden = 7168
	benchTopK   = 8
)

// benchValues returns off-heap bf16 rows of ordinary values.
func benchValues(b *testing.B, rows int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	values := make([]uint16, rows*benchHidden)
	for i := range values {
		values[i] = activation(r)
	}
	return offHeapBF16(b, values)
}

// BenchmarkPlace stores each of 128 tokens once; bytes are read plus written.
func BenchmarkPlace(b *testing.B) {
	x := benchValues(b, benchTokens)
	for _, cast := range []bool{false, true} {
		name, bytes := "bf16", benchTokens*benchHidden*4
		if cast {
			name, bytes = "fp8", benchTokens*(benchHidden*3+benchHidden/32)
		}
		batch := &device.PlaceBatch{
			X: x, Hidden: benchHidden, RowType: rowType(cast),
			Targets: slabs(b, 8, 2, 8, benchHidden, cast),
		}
		for t := range benchTokens {
			batch.Jobs = append(batch.Jobs, device.PlaceJob{
				Token: int32(t), Target: int32(t % 8), Expert: int32(t / 8 % 2), Pos: int32(t / 16)})
		}
		for _, k := range all(b) {
			b.Run(name+"/"+k.Name(), func(b *testing.B) {
				b.SetBytes(int64(bytes))
				b.ReportAllocs()
				for b.Loop() {
					k.Place(batch)
				}
			})
		}
	}
}

// BenchmarkReduce sums 8 rows per token: the same 8 for every token (hot) and
// 1024 different ones, in the order in which dispatch leaves them (cold).
func BenchmarkReduce(b *testing.B) {
	source := benchValues(b, benchTokens*benchTopK)
	b.Run("bf16", func(b *testing.B) { benchReduce(b, source, false, false) })
	b.Run("bf16-runs", func(b *testing.B) { benchReduce(b, source, false, true) })
	fp32 := offHeap(b, 2*len(source))
	for i := range len(source) / 2 {
		binary.LittleEndian.PutUint32(fp32[4*i:], uint32(bf16At(source, i))<<16|0x1234)
	}
	b.Run("float32", func(b *testing.B) { benchReduce(b, fp32, true, false) })
}

// benchReduce adds 8 rows up, with runs in 5 sums: as many ranks as a token has.
func benchReduce(b *testing.B, source []byte, fp32, runs bool) {
	for _, hot := range []bool{true, false} {
		name := "cold"
		if hot {
			name = "hot"
		}
		batch := &device.ReduceBatch{
			Out: offHeap(b, benchTokens*benchHidden*2), Hidden: benchHidden, TopK: benchTopK,
			Sources: [][]byte{source, source, source, source, source}, RowType: valueType(fp32), Runs: runs,
		}
		for t := range benchTokens {
			for k := range benchTopK {
				row := k*benchTokens + t
				if hot {
					row = k
				}
				batch.Jobs = append(batch.Jobs, device.ReduceJob{Source: int32(k * 5 / 8), Row: int64(row)})
				batch.Weights = append(batch.Weights, 1/float32(k+2))
			}
		}
		for _, k := range all(b) {
			b.Run(name+"/"+k.Name(), func(b *testing.B) {
				b.SetBytes(int64(len(source) + len(batch.Out)))
				b.ReportAllocs()
				for b.Loop() {
					k.Reduce(batch)
				}
			})
		}
	}
}

func BenchmarkDequantise(b *testing.B) {
	batch := &DequantBatch{
		Dst:  offHeap(b, benchTokens*benchHidden*2),
		Rows: offHeap(b, benchTokens*benchHidden), Scales: offHeap(b, benchTokens*benchHidden/32),
		Hidden: benchHidden, RowsPerExpert: benchTokens, Ranges: []RowRange{{Count: benchTokens}},
	}
	for i := range batch.Rows {
		batch.Rows[i] = byte(i * 7 % 0x7f)
	}
	for _, k := range all(b) {
		b.Run(k.Name(), func(b *testing.B) {
			b.SetBytes(int64(len(batch.Dst) + len(batch.Rows) + len(batch.Scales)))
			for b.Loop() {
				k.(Dequantiser).Dequantise(batch)
			}
		})
	}
}

// BenchmarkCopy copies 1024 rows in one batch.
func BenchmarkCopy(b *testing.B) {
	const rows = 1024
	src, dst := benchValues(b, rows), offHeap(b, rows*benchHidden*2)
	jobs := make([]device.CopyJob, rows)
	for i := range jobs {
		at := i * benchHidden * 2
		jobs[i] = device.CopyJob{Dst: dst[at:][:benchHidden*2], Src: src[at:][:benchHidden*2]}
	}
	for _, k := range all(b) {
		b.Run(k.Name(), func(b *testing.B) {
			b.SetBytes(2 * rows * benchHidden * 2)
			b.ReportAllocs()
			for b.Loop() {
				k.Copy(jobs)
			}
		})
	}
}
