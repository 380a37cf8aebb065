package cpu_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"
)

// What docs/numerics.md says of the cast to fp8 with float32 scales, one value
// at a time. Values here are finite.

const castBlock = 128

// e4m3Values are the magnitudes of codes 0 to 0x7e.
var e4m3Values = func() (values [0x7f]float64) {
	for code := range values {
		values[code] = e4m3Value(code)
	}
	return values
}()

func e4m3Value(code int) float64 {
	if code < 8 {
		return float64(code) / 512
	}
	return float64(8+code%8) * math.Ldexp(1, code/8-10)
}

// e4m3 takes the nearer of two neighbours, the even one if both are as near.
func e4m3(f float32) byte {
	a := math.Abs(float64(f))
	code := sort.Search(0x7e, func(code int) bool { return e4m3Values[code] >= a })
	if code > 0 {
		below, above := a-e4m3Values[code-1], e4m3Values[code]-a
		if below < above || (below == above && code%2 == 1) {
			code--
		}
	}
	if math.Signbit(float64(f)) {
		code |= 0x80
	}
	return byte(code)
}

// castRow is a row as it arrives: codes, and the scale of each block.
type castRow struct {
	codes  []byte
	scales []float32
}

// castRows casts rows of bf16.
func castRows(in *input, hidden int) []castRow {
	rows := make([]castRow, in.tokens)
	for t := range rows {
		for x := in.x[t*hidden*2:][:hidden*2]; len(x) > 0; x = x[2*castBlock:] {
			rows[t].add(x[:2*castBlock])
		}
	}
	return rows
}

func (row *castRow) add(x []byte) {
	amax := float32(1e-4)
	for i := range castBlock {
		amax = max(amax, float32(math.Abs(float64(bf16ToFloat(x[2*i:])))))
	}
	scale := 448 / amax
	for i := range castBlock {
		row.codes = append(row.codes, e4m3(bf16ToFloat(x[2*i:])*scale))
	}
	row.scales = append(row.scales, amax/448)
}

// checkCast compares the rows that came and their scales with those that were
// sent. Where the rows lie is checked before.
func (d *dispatched) checkCast(rank int, s shape, ins []input) error {
	l, c := s.experts/s.ranks, s.ranks*s.maxTokens
	for src := range ins {
		rows := castRows(&ins[src], s.hidden)
		for e := range l {
			begin := int(d.layout[e*s.ranks+src] >> 32)
			for i, tok := range wantRows(&ins[src], s.topk, int64(rank*l+e)) {
				got := d.castRow(s, e, begin+i, c)
				if !bytes.Equal(got.codes, rows[tok].codes) || !slices.Equal(got.scales, rows[tok].scales) {
					return fmt.Errorf("%v: rank %d expert %d source %d token %d: fp8 row or scales differ", s, rank, e, src, tok)
				}
			}
		}
	}
	return nil
}

// castRow is row i of c of a local expert, as it arrived.
func (d *dispatched) castRow(s shape, e, i, c int) (row castRow) {
	row.codes = d.res.RecvX[(e*c+i)*s.hidden:][:s.hidden]
	blocks := s.hidden / castBlock
	for b := range blocks {
		bits := binary.LittleEndian.Uint32(d.res.Scales[((e*blocks+b)*c+i)*4:])
		row.scales = append(row.scales, math.Float32frombits(bits))
	}
	return row
}

// expertFP8 is the stand-in for expert e, of a row of codes.
func expertFP8(e int, row castRow, out []byte) {
	for i, code := range row.codes {
		v := float32(e4m3Values[code&0x7f])
		if code&0x80 != 0 {
			v = -v
		}
		v = v * row.scales[i/castBlock] * (1 + float32(e)/8)
		binary.LittleEndian.PutUint16(out[2*i:], floatToBF16(v))
	}
}

// computeFP8 runs the stand-in experts on what arrived.
func (d *dispatched) computeFP8(rank int, s shape) {
	l, c := s.experts/s.ranks, s.ranks*s.maxTokens
	for pair, of := range d.layout[:l*s.ranks] { // rows that a lost rank had reserved belong to no source
		e, begin := pair/s.ranks, int(of>>32)
		for i := begin; i < begin+int(of&(1<<32-1)); i++ {
			expertFP8(rank*l+e, d.castRow(s, e, i, c), d.res.CombineX[(e*c+i)*s.hidden*2:][:s.hidden*2])
		}
	}
}

// wantCombineFP8 is the definition of the result for one rank.
func wantCombineFP8(in *input, s shape, lost func(id int64) bool) (out []byte) {
	y := make([]byte, s.hidden*2)
	for t, row := range castRows(in, s.hidden) {
		sum := make([]float32, s.hidden)
		for k, id := range in.topk[t*s.topk:][:s.topk] {
			if id < 0 || lost(id) {
				continue
			}
			expertFP8(int(id), row, y)
			for h := range sum {
				product := float32(in.weights[t*s.topk+k] * bf16ToFloat(y[2*h:]))
				sum[h] = float32(sum[h] + product)
			}
		}
		for _, v := range sum {
			out = binary.LittleEndian.AppendUint16(out, floatToBF16(v))
		}
	}
	return out
}

// roundTripFP8 is a dispatch with the cast, the experts and a combine, all
// compared.
func (w *world) roundTripFP8(rank int, s shape, ins []input) error {
	s.fp8 = true
	d, err := w.dispatch(rank, s, &ins[rank])
	if err != nil {
		return err
	}
	if err := d.check(rank, s, ins); err != nil {
		return err
	}
	if err := d.checkCast(rank, s, ins); err != nil {
		return err
	}
	d.computeFP8(rank, s)
	out, err := w.combine(rank, s, &ins[rank], d)
	if err == nil && !bytes.Equal(out, wantCombineFP8(&ins[rank], s, alive)) {
		err = fmt.Errorf("%v: rank %d: combine differs from the oracle", s, rank)
	}
	return err
}
