package ep_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// flatShape is a shape with what tokens bring along.
type flatShape struct {
	shape
	bare  bool
	extra [layout.NumExtras]int
}

// flatInput is one rank's part of a flat operation.
type flatInput struct {
	input
	extra [layout.NumExtras][]byte
}

func randomFlatShape(r *rand.Rand, ranks int) flatShape {
	s := flatShape{shape: randomShape(r, ranks), bare: r.IntN(5) == 0}
	s.wide = r.IntN(4) == 0
	for i := range s.extra {
		s.extra[i] = r.IntN(3) * r.IntN(20)
	}
	return s
}

func flatInputs(r *rand.Rand, s flatShape, route routing) []flatInput {
	ins := make([]flatInput, s.ranks)
	for i, in := range inputs(r, s.shape, route) {
		ins[i].input = in
		for e, width := range s.extra {
			ins[i].extra[e] = make([]byte, in.tokens*width)
			for at := range ins[i].extra[e] {
				ins[i].extra[e][at] = byte(r.Uint32())
			}
		}
	}
	return ins
}

func (w *world) flatArgs(rank int, s flatShape, in *flatInput, d *dispatched) *ep.DispatchArgs {
	a := w.args(rank, s.shape, &in.input, d)
	a.Flat, a.Bare, a.Extra, a.ExtraRowBytes = true, s.bare, in.extra, s.extra
	if !s.bare {
		a.TopkWeights = in.weights
	}
	return a
}

func (w *world) dispatchFlat(rank int, s flatShape, in *flatInput) (*dispatched, error) {
	d := new(dispatched)
	p, err := w.bufs[rank].Dispatch(w.flatArgs(rank, s, in, d), &d.res, ep.PhaseDone, -1)
	if err == nil && p != nil {
		err = fmt.Errorf("dispatch returned a pending operation after waiting for its end")
	}
	return d, err
}

// flatRow is what the definition says of one received row.
type flatRow struct {
	source, token int
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

// checkFlat compares what a rank received with the definition.
func (d *dispatched) checkFlat(rank int, s flatShape, ins []flatInput, lost func(rank int) bool) error {
	want := wantFlatRows(rank, s, ins, lost)
	if int(d.counts[0]) != len(want) {
		return fmt.Errorf("%v: rank %d received %d rows, want %d", s, rank, d.counts[0], len(want))
	}
	for i := range want {
		if err := d.checkFlatRow(i, s, &want[i], &ins[want[i].source]); err != nil {
			return fmt.Errorf("%v: rank %d, row %d, token %d of rank %d: %w", s, rank, i, want[i].token, want[i].source, err)
		}
	}
	return d.checkFlatRanges(s, want)
}

func (d *dispatched) checkFlatRow(i int, s flatShape, want *flatRow, in *flatInput) error {
	if got := int(int32(binary.LittleEndian.Uint32(d.res.SrcInfo[i*4:]))); got != want.token {
		return fmt.Errorf("src_info is %d", got)
	}
	if row := s.hidden * 2; !bytes.Equal(d.res.RecvX[i*row:(i+1)*row], in.x[want.token*row:(want.token+1)*row]) {
		return fmt.Errorf("the row differs")
	}
	for e, n := range s.extra {
		if got := d.res.Columns[layout.ColumnExtra+e]; !bytes.Equal(got[i*n:(i+1)*n], in.extra[e][want.token*n:(want.token+1)*n]) {
			return fmt.Errorf("extra %d differs", e)
		}
	}
	if ids, weights := d.flatTopk(i, s); !s.bare && (fmt.Sprint(ids) != fmt.Sprint(want.ids) || fmt.Sprint(weights) != fmt.Sprint(want.weights)) {
		return fmt.Errorf("ids %v and weights %v, want %v and %v", ids, weights, want.ids, want.weights)
	}
	return nil
}

// flatTopk reads the ids and weights of one received row.
func (d *dispatched) flatTopk(i int, s flatShape) (ids []int64, weights []float32) {
	for k := i * s.topk; !s.bare && k < (i+1)*s.topk; k++ {
		ids = append(ids, int64(binary.LittleEndian.Uint64(d.res.Columns[layout.ColumnTopkIdx][k*8:])))
		weights = append(weights, math.Float32frombits(binary.LittleEndian.Uint32(d.res.Columns[layout.ColumnTopkWeights][k*4:])))
	}
	return ids, weights
}

func (d *dispatched) checkFlatRanges(s flatShape, want []flatRow) error {
	next := 0
	for src := range s.ranks {
		n := 0
		for i := range want {
			if want[i].source == src {
				n++
			}
		}
		begin, got := int(d.layout[src]>>32), int(d.layout[src]&(1<<32-1))
		if got != n || (n > 0 && begin != next) {
			return fmt.Errorf("%v: rows of rank %d: %d from %d on, want %d from %d on", s, src, got, begin, n, next)
		}
		next += n
	}
	return nil
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
func outputBytes(sum []float32, wide bool) (out []byte) {
	for _, v := range sum {
		if wide {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
		} else {
			out = binary.LittleEndian.AppendUint16(out, floatToBF16(v))
		}
	}
	return out
}

// computeFlat is a rank's experts: y has a row for every received one.
func (d *dispatched) computeFlat(rank int, s flatShape, rows []flatRow, y []byte) []byte {
	at := 0
	for i := range rows {
		row := s.hidden * 2
		out := outputBytes(addUp(rank, s, d.res.RecvX[i*row:(i+1)*row], rows[i].ids, rows[i].weights), s.wide)
		copy(y[at:], out)
		at += len(out)
	}
	return y[:at]
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
			for h, b := 0, outputBytes(sum, s.wide); h < s.hidden; h++ {
				v := float32(0)
				if s.wide {
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

func flatCombineArgs(d *dispatched, s flatShape, in *flatInput, y []byte, zeroCopy bool) *ep.CombineArgs {
	return &ep.CombineArgs{
		Flat: true, X: y, ZeroCopy: zeroCopy, Out: bytes.Repeat([]byte{0xaa}, in.tokens*s.hidden*2),
		NumTokens: in.tokens, Timeout: 20 * time.Second,
	}
}

func nobody(int) bool { return false }

// flatTrip is a dispatch, the experts and a combine, all compared.
func (w *world) flatTrip(rank int, s flatShape, ins []flatInput, inPlace bool) error {
	d, err := w.dispatchFlat(rank, s, &ins[rank])
	if err != nil {
		return err
	}
	if err := d.checkFlat(rank, s, ins, nobody); err != nil {
		return err
	}
	y := d.res.CombineX
	if !inPlace {
		y = make([]byte, len(y))
	}
	y = d.computeFlat(rank, s, wantFlatRows(rank, s, ins, nobody), y)
	a := flatCombineArgs(d, s, &ins[rank], y, inPlace)
	if _, err := w.bufs[rank].Combine(d.res.Op, a, ep.PhaseDone, -1); err != nil {
		return err
	}
	if !bytes.Equal(a.Out, wantFlat(&ins[rank], s, nobody)) {
		return fmt.Errorf("%v: rank %d: combine differs from the oracle", s, rank)
	}
	return nil
}

// TestFlatExchange compares flat operations with the oracle, on random shapes,
// routings, token counts and columns, in turn with packed ones in the same slots.
func TestFlatExchange(t *testing.T) {
	for _, ranks := range []int{1, 2, 3, 4, 8} {
		for _, deterministic := range []bool{false, true} {
			t.Run(fmt.Sprintf("R%d-deterministic=%v", ranks, deterministic), func(t *testing.T) {
				r := seeded(t)
				w := newWorld(t, ranks, ep.Config{NumBytes: 64 << 20, DebugFill: true, Deterministic: deterministic})
				for i := range 60 {
					s := randomFlatShape(r, ranks)
					ins := flatInputs(r, s, routings[i%len(routings)])
					if i%4 == 3 {
						s.wide = false
						packed := make([]input, ranks)
						for j := range ins {
							packed[j] = ins[j].input
						}
						w.each(func(rank int) error { return w.roundTrip(rank, s.shape, packed) })
						continue
					}
					w.each(func(rank int) error { return w.flatTrip(rank, s, ins, i%2 == 0) })
				}
			})
		}
	}
}
