package cpu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// flatShape is a shape with what tokens bring along.
type flatShape struct {
	shape
	noRouting bool
	extra     [protocol.NumExtras]int
}

// flatInput is one rank's part of a flat operation.
type flatInput struct {
	input
	extra [protocol.NumExtras][]byte
}

func randomFlatShape(r *rand.Rand, ranks int) flatShape {
	s := flatShape{shape: randomShape(r, ranks), noRouting: r.IntN(5) == 0}
	s.fp32 = r.IntN(4) == 0
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
	a.Flat, a.NoRouting, a.Extra, a.ExtraRowBytes = true, s.noRouting, in.extra, s.extra
	if !s.noRouting {
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

// checkFlat compares what a rank received with the definition. lost sources do
// not count: they may have left holes, which are the only ones allowed. It
// returns the rows, which know where they lie.
func (d *dispatched) checkFlat(rank int, s flatShape, ins []flatInput, lost func(rank int) bool) ([]flatRow, error) {
	return d.checkFlatHoles(rank, s, ins, lost, anyLost(s, lost))
}

// checkFlatHoles is checkFlat where there may be holes for another reason. They
// have valid ids: -1, or those of a lost rank that goes on writing.
func (d *dispatched) checkFlatHoles(rank int, s flatShape, ins []flatInput, lost func(rank int) bool, holes bool) ([]flatRow, error) {
	want := wantFlatRows(rank, s, ins, lost)
	if err := d.locate(s, want, holes); err != nil {
		return nil, fmt.Errorf("%v: rank %d: %w", s, rank, err)
	}
	for i := range want {
		if err := d.checkFlatRow(s, &want[i], &ins[want[i].source]); err != nil {
			return nil, fmt.Errorf("%v: rank %d, row %d, token %d of rank %d: %w", s, rank, want[i].at, want[i].token, want[i].source, err)
		}
	}
	for _, at := range d.holes(want) {
		ids, _ := d.flatTopk(at, s)
		if !holes || (len(ids) > 0 && (slices.Min(ids) < -1 || slices.Max(ids) >= int64(s.experts/s.ranks))) {
			return nil, fmt.Errorf("%v: rank %d: row %d is nobody's, with ids %v", s, rank, at, ids)
		}
	}
	return want, nil
}

// holes are the rows that no rank has finished.
func (d *dispatched) holes(rows []flatRow) (at []int) {
	for i := range int(d.counts[0]) {
		if !slices.ContainsFunc(rows, func(row flatRow) bool { return row.at == i }) {
			at = append(at, i)
		}
	}
	return at
}

func anyLost(s flatShape, lost func(rank int) bool) (any bool) {
	for r := range s.ranks {
		any = any || lost(r)
	}
	return any
}

// locate says where the wanted rows lie: in order of rank, without holes but
// those of lost ranks.
func (d *dispatched) locate(s flatShape, want []flatRow, holes bool) error {
	next, at := 0, 0
	for src := range s.ranks {
		begin, n := int(d.layout[src]>>32), int(d.layout[src]&(1<<32-1))
		for i := range n {
			if at == len(want) || want[at].source != src || begin+i >= int(d.counts[0]) {
				return fmt.Errorf("%d rows of rank %d from %d on are not what was sent: %d received, %d wanted", n, src, begin, d.counts[0], len(want))
			}
			want[at].at = begin + i
			at++
		}
		if n > 0 && (begin < next || (begin > next && !holes)) {
			return fmt.Errorf("rows of rank %d begin at %d, those before end at %d", src, begin, next)
		}
		if n > 0 {
			next = begin + n
		}
	}
	if at < len(want) {
		return fmt.Errorf("%d rows are missing, the first of them of rank %d", len(want)-at, want[at].source)
	}
	return nil
}

func (d *dispatched) checkFlatRow(s flatShape, want *flatRow, in *flatInput) error {
	i := want.at
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
	if ids, weights := d.flatTopk(i, s); !s.noRouting && (fmt.Sprint(ids) != fmt.Sprint(want.ids) || fmt.Sprint(weights) != fmt.Sprint(want.weights)) {
		return fmt.Errorf("ids %v and weights %v, want %v and %v", ids, weights, want.ids, want.weights)
	}
	return nil
}

// flatTopk reads the ids and weights of one received row.
func (d *dispatched) flatTopk(i int, s flatShape) (ids []int64, weights []float32) {
	for k := i * s.topk; !s.noRouting && k < (i+1)*s.topk; k++ {
		ids = append(ids, int64(binary.LittleEndian.Uint64(d.res.Columns[layout.ColumnTopkIdx][k*8:])))
		weights = append(weights, math.Float32frombits(binary.LittleEndian.Uint32(d.res.Columns[layout.ColumnTopkWeights][k*4:])))
	}
	return ids, weights
}

// computeFlat is a rank's experts: y has a row for every received one.
func (d *dispatched) computeFlat(rank int, s flatShape, rows []flatRow, y []byte) []byte {
	in, out := s.hidden*2, s.hidden*2
	if s.fp32 {
		out *= 2
	}
	for i := range rows {
		at := rows[i].at
		sum := addUp(rank, s, d.res.RecvX[at*in:(at+1)*in], rows[i].ids, rows[i].weights)
		copy(y[at*out:], outputBytes(sum, s.fp32))
	}
	return y[:int(d.counts[0])*out]
}

func flatCombineArgs(d *dispatched, s flatShape, in *flatInput, y []byte, zeroCopy bool) *ep.CombineArgs {
	return &ep.CombineArgs{
		Flat: true, X: y, ZeroCopy: zeroCopy, Out: bytes.Repeat([]byte{0xaa}, in.tokens*s.hidden*2),
		NumTokens: in.tokens, Timeout: callTimeout,
	}
}

func nobody(int) bool { return false }

// flatTrip is a dispatch, the experts and a combine, all compared.
func (w *world) flatTrip(rank int, s flatShape, ins []flatInput, inPlace bool) error {
	d, err := w.dispatchFlat(rank, s, &ins[rank])
	if err != nil {
		return err
	}
	rows, err := d.checkFlat(rank, s, ins, nobody)
	if err != nil {
		return err
	}
	y := d.res.CombineX
	if !inPlace {
		y = make([]byte, len(y))
	}
	y = d.computeFlat(rank, s, rows, y)
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
						s.fp32 = false
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
