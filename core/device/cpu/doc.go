// Package cpu is the device.Kernels of a CPU: C kernels at the vector widths
// the machine has, and a plain Go reference. All of them give the same bits,
// those of docs/numerics.md.
//
// Row memory should be off the Go heap. Memory on the Go heap works too, but
// pinning it may allocate, and the race detector does not see what C does.
package cpu

import "github.com/moewire/moewire/core/device"

// Widths to ask New for, besides a number of bytes.
const (
	Widest    = 0  // the widest vectors this CPU has
	Reference = -1 // plain Go
)

// New returns kernels that use vectors of width bytes (16, 32 or 64), or
// Widest, or Reference, with the defaults of Options. Without cgo Widest is the
// reference too. The error says which widths there are.
func New(width int) (device.Kernels, error) { return Open(Options{Width: width}) }

// Widths returns the vector widths, in bytes and rising, that New accepts on
// this machine; none without cgo.
func Widths() []int {
	var widths []int
	for _, w := range []int{16, 32, 64} {
		if hasNative(w) {
			widths = append(widths, w)
		}
	}
	return widths
}

// Dequantiser is implemented by everything that New and NewReference return.
type Dequantiser interface {
	Dequantise(b *DequantBatch)
}

// DequantBatch turns e4m3 rows and their scales back into bf16:
// Dst[r] = bf16(e4m3 * scale), the product rounded to float32 and then to
// bf16 (nearest even), NaN being 0x7fc0.
type DequantBatch struct {
	Dst           []byte // bf16 rows of Hidden values
	Rows          []byte // e4m3 [L, C, Hidden]
	Scales        []byte // float32 [L, Hidden/128, C]
	Hidden        int    // a multiple of 128
	RowsPerExpert int    // C
	Ranges        []RowRange
}

// RowRange names Count rows of one expert's block and where in Dst they go.
type RowRange struct {
	Expert int32 // local expert
	Pos    int32 // first row within the expert's block
	Count  int64
	DstRow int64 // row of Dst for the first of them
}
