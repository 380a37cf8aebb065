package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/internal/testenv"
)

// staged makes memory for tables, and a reader that waits for all that was launched.
func staged(t *testing.T, g *group) (s *Staging, m *member, read func(at uint64, n int) []byte) {
	s, err := g.d.NewStaging(1<<16, 1<<12)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	m = g.ranks[0]
	return s, m, func(at uint64, n int) []byte {
		b, err := s.Fetch(at, n, uint64(m.stream))
		require.NoError(t, err)
		require.NoError(t, s.Mark(uint64(m.stream)))
		for done := false; !done; {
			done, err = s.Done()
			require.NoError(t, err)
		}
		return b
	}
}

func int32s(values []int32) (b []byte) {
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// TestMove: rows of many widths at many addresses, some of them twice, some zeros, and nothing beside them.
func TestMove(t *testing.T) {
	g := newGroup(t, 1, 1, 1<<21)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	for _, bytes := range []int{1, 4, 12, 16, 48, 2064, 5000} {
		s, m, read := staged(t, g)
		shift := uint64(rng.IntN(2) * (bytes % 16))
		fromAt, from := tensor[byte](m, 9*bytes+16)
		toAt, to := tensor[byte](m, 12*bytes+16)
		for i := range from {
			from[i] = byte(rng.Uint32())
		}
		for i := range to {
			to[i] = 0xa5
		}
		want := append([]byte(nil), to...)
		var table []int32
		for _, at := range rng.Perm(12)[:10] {
			row := int32(rng.IntN(10)) - 1
			table = append(table, row, int32(at))
			place := want[int(shift)+at*bytes:][:bytes]
			clear(place)
			if row >= 0 {
				copy(place, from[int(shift)+int(row)*bytes:])
			}
		}
		at, err := s.Put(int32s(table), uint64(m.stream))
		require.NoError(t, err)
		moves := Moves{From: fromAt + shift, To: toAt + shift, Table: at, NumRows: 10, RowBytes: bytes, Stream: uint64(m.stream)}
		require.NoError(t, m.Move(&moves))
		require.Equal(t, want, read(toAt, len(to)), "rows of %d bytes", bytes)
	}
}

// sumCase is one call of Sum with what must come out, by plain loops.
type sumCase struct {
	rows, out     protocol.DType
	hidden, terms int
	biases        int
}

// TestSum: each type of rows and of sums; biases come first, terms may be none, weights are added along.
func TestSum(t *testing.T) {
	g := newGroup(t, 1, 1, 1<<21)
	rng := rand.New(rand.NewPCG(testenv.Seed(t), 1))
	for _, c := range []sumCase{
		{protocol.BF16, protocol.BF16, 8, 1, 0}, {protocol.BF16, protocol.BF16, 520, 5, 1}, {protocol.BF16, protocol.BF16, 128, 62, 2},
		{protocol.FP32, protocol.BF16, 136, 9, 2}, {protocol.FP32, protocol.FP32, 264, 3, 1},
	} {
		g.ranks[0].used = 0
		c.check(t, g, rng)
	}
	require.Error(t, g.ranks[0].Sum(&Sums{NumSums: 1, NumTerms: 64, Bias: [2]uint64{0, 1}}))
}

const sumRows, sums, sumTopK = 7, 5, 3

func (c sumCase) check(t *testing.T, g *group, rng *rand.Rand) {
	s, m, read := staged(t, g)
	call := Sums{NumSums: sums, NumTerms: c.terms, Hidden: c.hidden, TopK: sumTopK, RowType: c.rows, OutType: c.out, Stream: uint64(m.stream)}
	values := func(n int) (at uint64, v []float32) {
		at, raw := tensor[byte](m, n*int(c.rows.RowBytes(8))/8)
		v = make([]float32, n)
		for i := range v {
			v[i] = drawValue(rng)
			put(raw, c.rows, i, v[i])
		}
		return at, v
	}
	var rows []float32
	call.Rows, rows = values(sumRows * c.hidden)
	bias := make([][]float32, c.biases)
	for i := range bias {
		call.Bias[2-c.biases+i], bias[i] = values(sums * c.hidden)
	}
	weightsAt, weights := tensor[float32](m, sumRows*sumTopK)
	for i := range weights {
		weights[i] = float32(rng.NormFloat64())
	}
	terms := make([]int32, sums*c.terms)
	for i := range terms {
		terms[i] = int32(rng.IntN(sumRows+2)) - 2
	}
	var err error
	call.Terms, err = s.Put(int32s(terms), call.Stream)
	require.NoError(t, err)
	call.Weights = weightsAt
	call.OutWeights, _ = tensor[float32](m, sums*sumTopK)
	width := int(c.out.RowBytes(8)) / 8
	call.Out, _ = tensor[byte](m, sums*c.hidden*width)
	require.NoError(t, m.Sum(&call))
	out := append([]byte(nil), read(call.Out, sums*c.hidden*width)...)
	home := read(call.OutWeights, 4*sums*sumTopK)
	for i := range sums {
		of := terms[i*c.terms:][:c.terms]
		for h := range c.hidden {
			sum := float32(0)
			for _, b := range bias {
				sum += b[i*c.hidden+h]
			}
			sum = addTerms(sum, of, func(row int) float32 { return rows[row*c.hidden+h] })
			want := make([]byte, width)
			put(want, c.out, 0, sum)
			require.Equal(t, want, out[(i*c.hidden+h)*width:][:width], "%+v: value %d of sum %d is not %v", c, h, i, sum)
		}
		for k := range sumTopK {
			want := addTerms(0, of, func(row int) float32 { return weights[row*sumTopK+k] })
			require.Equal(t, want, math.Float32frombits(binary.LittleEndian.Uint32(home[4*(i*sumTopK+k):])))
		}
	}
}

func addTerms(sum float32, terms []int32, value func(row int) float32) float32 {
	for _, row := range terms {
		if row >= 0 {
			sum += value(int(row))
		}
	}
	return sum
}

// drawValue is one that bf16 has, now and then no number.
func drawValue(rng *rand.Rand) float32 {
	if rng.IntN(50) == 0 {
		return float(edges[rng.IntN(len(edges))])
	}
	return float(bf16(float32(rng.NormFloat64())))
}

// put stores value i of a type, a NaN as the canonical one of a sum.
func put(to []byte, as protocol.DType, i int, v float32) {
	if as == protocol.BF16 {
		binary.LittleEndian.PutUint16(to[2*i:], rounded(v))
		return
	}
	bits := math.Float32bits(v)
	if v != v {
		bits = 0x7fc00000
	}
	binary.LittleEndian.PutUint32(to[4*i:], bits)
}

// TestStagingIsBounded: a table that does not fit is refused, and fits again after a reset.
func TestStagingIsBounded(t *testing.T) {
	g := newGroup(t, 1, 1, 1<<21)
	s, m, _ := staged(t, g)
	done, err := s.Done()
	require.True(t, done, "nothing was marked")
	require.NoError(t, err)
	_, err = s.Put(make([]byte, 1<<16), uint64(m.stream))
	require.NoError(t, err)
	_, err = s.Put(make([]byte, 1), uint64(m.stream))
	require.ErrorContains(t, err, "tables of 1 bytes")
	_, err = s.Fetch(s.Rows(), 1, uint64(m.stream))
	require.Error(t, err)
	g.sync()
	s.Reset()
	_, err = s.Put(make([]byte, 1<<16), uint64(m.stream))
	require.NoError(t, err)
	g.sync()
}
