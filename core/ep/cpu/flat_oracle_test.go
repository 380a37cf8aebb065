package cpu_test

import (
	"encoding/binary"
	"math"
)

// flatRow is what the definition says of one received row.
type flatRow struct {
	source, token int
	at            int // where it lies, once that is known
	ids           []int64
	weights       []float32
}

// wantFlatRows lists the rows that a rank gets: by rank, then by token.
func wantFlatRows(rank int, s flatShape, ins []flatInput, lost func(rank int) bool) (rows []flatRow) {
	l := int64(s.experts / s.ranks)
	for src := range ins {
		for t := 0; t < ins[src].tokens && !lost(src); t++ {
			row, here := flatRow{source: src, token: t}, false
			for k, id := range ins[src].topk[t*s.topk : (t+1)*s.topk] {
				if id >= 0 && id/l == int64(rank) {
					row.ids, row.weights = append(row.ids, id%l), append(row.weights, ins[src].weights[t*s.topk+k])
					here = true
					continue
				}
				row.ids, row.weights = append(row.ids, -1), append(row.weights, 0)
			}
			if here {
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// addUp is what a rank makes of one token: its experts' outputs, weighted and
// added in order of k, in float32.
func addUp(rank int, s flatShape, x []byte, ids []int64, weights []float32) []float32 {
	y, sum := make([]byte, len(x)), make([]float32, len(x)/2)
	for k, id := range ids {
		if id < 0 {
			continue
		}
		expert(rank*(s.experts/s.ranks)+int(id), x, y)
		for h := range sum {
			product := float32(weights[k] * bf16ToFloat(y[2*h:]))
			sum[h] = float32(sum[h] + product)
		}
	}
	return sum
}

// outputBytes is a rank's sum as it travels back.
func outputBytes(sum []float32, fp32 bool) (out []byte) {
	for _, v := range sum {
		if fp32 {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		} else {
			out = binary.LittleEndian.AppendUint16(out, floatToBF16(v))
		}
	}
	return out
}

// wantFlat is the definition of a flat combine's result for one rank.
func wantFlat(in *flatInput, s flatShape, lost func(rank int) bool) (out []byte) {
	l, row := int64(s.experts/s.ranks), s.hidden*2
	for t := range in.tokens {
		total := make([]float32, s.hidden)
		for r := range s.ranks {
			ids, here := make([]int64, s.topk), false
			for k, id := range in.topk[t*s.topk : (t+1)*s.topk] {
				if ids[k] = -1; id >= 0 && id/l == int64(r) {
					ids[k], here = id%l, true
				}
			}
			if !here || lost(r) {
				continue
			}
			sum := addUp(r, s, in.x[t*row:(t+1)*row], ids, in.weights[t*s.topk:(t+1)*s.topk])
			for h, b := 0, outputBytes(sum, s.fp32); h < s.hidden; h++ {
				v := float32(0)
				if s.fp32 {
					v = math.Float32frombits(binary.LittleEndian.Uint32(b[4*h:]))
				} else {
					v = bf16ToFloat(b[2*h:])
				}
				total[h] = float32(total[h] + v)
			}
		}
		for _, v := range total {
			out = binary.LittleEndian.AppendUint16(out, floatToBF16(v))
		}
	}
	return out
}
