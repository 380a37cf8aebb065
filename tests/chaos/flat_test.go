package chaos

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// blocks is how many blocks of rows a rank has.
func (s *shape) blocks() int {
	if s.flat {
		return 1
	}
	return s.experts / s.ranks
}

// goesTo reports whether a selection makes a row in a block, counted over all ranks.
func (s *shape) goesTo(id int64, block int) bool {
	if s.flat {
		return id >= 0 && s.owner(id) == block
	}
	return id == int64(block)
}

// flatten makes the arguments those of a flat dispatch.
func (in *input) flatten(a *ep.DispatchArgs) {
	a.Flat, a.TopkWeights = true, in.weights
	a.ExtraRowBytes[1], a.Extra[1] = 3, make([]byte, 3*in.tokens)
	for i := range a.Extra[1] {
		a.Extra[1][i] = byte(in.tokens + i)
	}
}

// checkColumns looks at what a flat row has brought along.
func (f *inFlight) checkColumns(row, src, token int) error {
	in, local := &f.ins[src], f.experts/f.ranks
	for k := range f.topk {
		id, weight := in.topk[token*f.topk+k]-int64(f.r.num*local), in.weights[token*f.topk+k]
		if id < 0 || id >= int64(local) {
			id, weight = -1, 0
		}
		if gotID, gotWeight := f.column(row, k); gotID != id || gotWeight != weight {
			return fmt.Errorf("source %d token %d: selection %d is %d with %g, want %d with %g", src, token, k, gotID, gotWeight, id, weight)
		}
	}
	for i, got := range f.res.Columns[layout.ColumnExtra+1][3*row : 3*row+3] {
		if want := byte(in.tokens + 3*token + i); got != want {
			return fmt.Errorf("source %d token %d: extra byte %d is %d, want %d", src, token, i, got, want)
		}
	}
	return nil
}

func (f *inFlight) column(row, k int) (id int64, weight float32) {
	at := row*f.topk + k
	id = int64(binary.LittleEndian.Uint64(f.res.Columns[layout.ColumnTopkIdx][8*at:]))
	return id, math.Float32frombits(binary.LittleEndian.Uint32(f.res.Columns[layout.ColumnTopkWeights][4*at:]))
}

// computeFlat runs the experts that each row names, holes too: their ids must
// be such that this is possible.
func (f *inFlight) computeFlat(n int, y []byte) {
	f.r.trap.hit(atComputing)
	local := f.experts / f.ranks
	for row := range int(f.counts[0]) {
		sum := make([]float32, f.hidden)
		for k := range f.topk {
			id, weight := f.column(row, k)
			if id < -1 || id >= int64(local) {
				f.r.wrong(fmt.Errorf("operation %d, row %d: expert %d", f.res.Op, row, id))
			}
			for h := 0; id >= 0 && h < f.hidden; h++ {
				v := apply(f.r.num*local+int(id), n, f.value(0, row, row*f.hidden, h))
				sum[h] += float32(weight * math.Float32frombits(uint32(v)<<16))
			}
		}
		for h, v := range sum {
			binary.LittleEndian.PutUint16(y[(row*f.hidden+h)*2:], toBF16(v))
		}
	}
}

// wantFlat is the definition of a flat combine for one token.
func (s *shape) wantFlat(in *input, t, n int, mask []int32, row []float32) []float32 {
	total := make([]float32, s.hidden)
	for r := range s.ranks {
		sum, any := make([]float32, s.hidden), false
		for i, id := range in.topk[t*s.topk : (t+1)*s.topk] {
			if id < 0 || s.owner(id) != r || mask[r] == 0 {
				continue
			}
			any = true
			for h := range sum {
				y := math.Float32frombits(uint32(apply(int(id), n, row[h])) << 16)
				sum[h] = float32(sum[h] + float32(in.weights[t*s.topk+i]*y))
			}
		}
		for h := 0; any && h < s.hidden; h++ {
			total[h] += math.Float32frombits(uint32(toBF16(sum[h])) << 16)
		}
	}
	return total
}
