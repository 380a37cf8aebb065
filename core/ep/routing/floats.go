package routing

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/ep/layout"
)

// extra are the bytes of one of the columns that came with the rows.
func (in *incoming) extra(column int) []byte { return in.Columns[layout.ColumnExtra+column] }

func appendFloat(to []byte, v float32) []byte {
	return binary.LittleEndian.AppendUint32(to, math.Float32bits(v))
}

// appendFloats appends values as rows carry them.
func appendFloats(to []byte, values []float32) []byte {
	for _, v := range values {
		to = appendFloat(to, v)
	}
	return to
}

// floatAt is value i.
func floatAt(from []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:]))
}
