package cpu

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/moewire/moewire/core/device"
)

// FuzzPlace casts one block of any bits, in float32 scales and powers of two,
// and compares every implementation with the oracle.
func FuzzPlace(f *testing.F) {
	for _, v := range edges {
		f.Add(binary.LittleEndian.AppendUint16([]byte{0x80, 0x3f, 0xc1, 0xbf}, v))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		x := make([]byte, 256)
		copy(x, data)
		values := make([]uint16, 128)
		for i := range values {
			values[i] = bf16At(x, i)
		}
		for _, f := range formats(128) {
			codes, scale := oracleQuantise(values, f)
			for _, k := range all(t) {
				target := device.Target{Rows: make([]byte, 128), Scales: make([]byte, 4), SrcInfo: make([]byte, 4), RowsPerExpert: 1}
				k.Place(&device.PlaceBatch{X: x, Hidden: 128, RowType: f,
					Targets: []device.Target{target}, Jobs: make([]device.PlaceJob, 1)})
				if !bytes.Equal(target.Rows, codes) || u32At(target.Scales, 0) != scale {
					t.Fatalf("%s, %s: % x scale %#08x, want % x scale %#08x", k.Name(), f.Scales(),
						target.Rows, u32At(target.Scales, 0), codes, scale)
				}
			}
		}
	})
}

// FuzzReduce sums two rows of any bits with any weights, in one run and in two.
func FuzzReduce(f *testing.F) {
	for _, v := range edges {
		f.Add(binary.LittleEndian.AppendUint16(nil, v), float32(0.75), float32(-3))
	}
	f.Add([]byte{0x80, 0x7f, 0x80, 0xff}, float32(0), float32(math.Inf(-1)))
	f.Fuzz(func(t *testing.T, data []byte, w0, w1 float32) {
		hidden := 8 * (1 + len(data)%9)
		rows := make([]byte, 4*hidden)
		copy(rows, data)
		copy(rows[2*hidden:], data[len(data)/2:])
		b := &device.ReduceBatch{
			Out: make([]byte, 2*hidden), Hidden: hidden, TopK: 2, Sources: [][]byte{rows},
			Jobs: []device.ReduceJob{{Row: 0}, {Row: 1}}, Weights: []float32{w0, w1},
		}
		reduceAndCheck(t, b)
		runsAndCheck(t, b)
		b.Sources, b.Jobs[1].Source, b.Runs = [][]byte{rows, rows}, 1, false
		reduceAndCheck(t, b)
		runsAndCheck(t, b)
	})
}
