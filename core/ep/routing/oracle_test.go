package routing_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/moewire/moewire/core/ep/routing"
)

// row is a row that a rank must get, by plain loops.
type row struct{ source, token int }

func rowsAt(rank int, s shape, ins []input) (rows []row) {
	for r := range ins {
		for t := range ins[r].tokens {
			if ins[r].goes(s, t, rank) {
				rows = append(rows, row{r, t})
			}
		}
	}
	return rows
}

// placesAt are the rows' selections in order of expert.
func placesAt(rank int, s shape, ins []input, alignment int) (at map[[2]int]int, total int) {
	rows, at := rowsAt(rank, s, ins), map[[2]int]int{}
	for e := range s.local() {
		for n, from := range rows {
			for k, id := range ins[from.source].ids[from.token*s.topK:][:s.topK] {
				if id == int64(rank*s.local()+e) {
					at[[2]int{n, k}] = total
					total++
				}
			}
		}
		for total%alignment != 0 {
			total++
		}
	}
	return at, total
}

// rank is one rank with its routing, in a test.
type member struct {
	*routing.Routing
	group *routing.Group
	rank  int
	s     shape
	ins   []input
	got   []row
	mem   *deviceMemory // nil on the CPU
}

func makeRouting(g *routing.Group, rank int, s shape, ins []input) (*member, error) {
	in := &ins[rank]
	a := &routing.Args{NumTokens: in.tokens, NumExperts: s.experts, TopK: s.topK, TopkIdx: in.ids, Timeout: -1}
	mem := deviceMemoryOf(g)
	if mem != nil {
		a.Stream = mem.stream
	}
	r, c, err := g.Make(a)
	if err := run(c, err); err != nil {
		return nil, err
	}
	m := &member{r, g, rank, s, ins, rowsAt(rank, s, ins), mem}
	return m, m.check()
}

// scatter and gather make a call, and copy its memory to the device and back if that is where it has to be.
func (m *member) scatter(a *routing.ScatterArgs) error {
	if m.mem != nil {
		return m.mem.scatter(m, a)
	}
	return run(m.group.Scatter(m.Routing, a))
}

func (m *member) gather(a *routing.GatherArgs) error {
	if m.mem != nil {
		return m.mem.gather(m, a)
	}
	return run(m.group.Gather(m.Routing, a))
}

func (m *member) check() error {
	if m.NumRows() != len(m.got) {
		return fmt.Errorf("%d rows, want %d", m.NumRows(), len(m.got))
	}
	counts := make([]int32, m.s.local())
	for n, from := range m.got {
		if int(m.SourceTokens()[n]) != from.token {
			return fmt.Errorf("row %d is of token %d, want %d", n, m.SourceTokens()[n], from.token)
		}
		for k := range m.s.topK {
			want := m.localID(from, k)
			if m.LocalIDs()[n*m.s.topK+k] != want {
				return fmt.Errorf("id %d of row %d is %d, want %d", k, n, m.LocalIDs()[n*m.s.topK+k], want)
			}
			if want >= 0 {
				counts[want]++
			}
		}
	}
	if !slices.Equal(counts, m.Counts()) {
		return fmt.Errorf("counts %v, want %v", m.Counts(), counts)
	}
	return nil
}

func (m *member) localID(from row, k int) int32 {
	id := int(m.ins[from.source].ids[from.token*m.s.topK+k]) - m.rank*m.s.local()
	if id < 0 || id >= m.s.local() {
		return -1
	}
	return int32(id)
}

// scatterCompact compares every byte with the sources'.
func (m *member) scatterCompact() error {
	in, n, rb := &m.ins[m.rank], m.NumRows(), 2*m.s.hidden
	out, weights, extra := make([]byte, n*rb), make([]float32, n*m.s.topK), make([]byte, n*m.s.extra)
	err := m.scatter(&routing.ScatterArgs{
		X: in.x, RowBytes: rb, Out: out, WithWeights: true, Weights: in.weights, OutWeights: weights,
		Extra: in.extra, ExtraBytes: m.s.extra, OutExtra: extra, Timeout: -1,
	})
	if err != nil {
		return err
	}
	for i, from := range m.got {
		src := &m.ins[from.source]
		if !bytes.Equal(out[i*rb:][:rb], src.x[from.token*rb:][:rb]) || !bytes.Equal(extra[i*m.s.extra:][:m.s.extra], src.extra[from.token*m.s.extra:][:m.s.extra]) {
			return fmt.Errorf("row %d differs from token %v", i, from)
		}
		for k := range m.s.topK {
			want := src.weights[from.token*m.s.topK+k]
			if m.localID(from, k) < 0 {
				want = 0
			}
			if got := weights[i*m.s.topK+k]; got != want {
				return fmt.Errorf("weight %d of row %d is %v, want %v", k, i, got, want)
			}
		}
	}
	return nil
}

func (m *member) scatterExpanded(alignment int) error {
	in, rb := &m.ins[m.rank], 2*m.s.hidden
	at, total := placesAt(m.rank, m.s, m.ins, alignment)
	l := routing.Layout{Expanded: true, Alignment: alignment, ZeroGaps: true}
	if n := m.NumRowsIn(l); n != total {
		return fmt.Errorf("%d expanded rows, want %d", n, total)
	}
	out, weights := bytes.Repeat([]byte{0xff}, total*rb), make([]float32, total)
	err := m.scatter(&routing.ScatterArgs{
		X: in.x, RowBytes: rb, Out: out, WithWeights: true, Weights: in.weights, OutWeights: weights, Layout: l, Timeout: -1,
	})
	if err != nil {
		return err
	}
	want, wantWeights := make([]byte, total*rb), make([]float32, total)
	for place, to := range at {
		from := m.got[place[0]]
		copy(want[to*rb:][:rb], m.ins[from.source].x[from.token*rb:])
		wantWeights[to] = m.ins[from.source].weights[from.token*m.s.topK+place[1]]
	}
	if !bytes.Equal(out, want) || !slices.Equal(weights, wantWeights) {
		return fmt.Errorf("expanded rows differ")
	}
	return nil
}

// outputs are what every rank gives a gather: rows that depend on rank, source and token.
func outputs(rank int, rows []row, hidden int) []byte {
	y := make([]byte, 2*hidden*len(rows))
	for i, from := range rows {
		for h := range hidden {
			v := toBF16(float32((rank*31+from.source*7+from.token*3+h)%61) / 8)
			binary.LittleEndian.PutUint16(y[2*(i*hidden+h):], v)
		}
	}
	return y
}

// gatherCompact compares each sum with one in order of rank.
func (m *member) gatherCompact() error {
	in, k := &m.ins[m.rank], m.s.topK
	out, home := make([]byte, in.tokens*2*m.s.hidden), make([]float32, in.tokens*k)
	weights := make([]float32, m.NumRows()*k)
	for i := range weights {
		weights[i] = float32(m.rank + 1)
	}
	err := m.gather(&routing.GatherArgs{
		X: outputs(m.rank, m.got, m.s.hidden), Hidden: m.s.hidden, Out: out, WithWeights: true, Weights: weights, OutWeights: home,
		OwnersOnly: true, Bias: in.bias, Timeout: -1,
	})
	if err != nil {
		return err
	}
	return m.checkGathered(out, home, func(rank int, from row) []byte { return outputs(rank, []row{from}, m.s.hidden) })
}

// gatherExpanded gives every selection its own row.
func (m *member) gatherExpanded(alignment int) error {
	in, k, rb := &m.ins[m.rank], m.s.topK, 2*m.s.hidden
	at, total := placesAt(m.rank, m.s, m.ins, alignment)
	x, weights := make([]byte, total*rb), make([]float32, total)
	for place, to := range at {
		copy(x[to*rb:], outputs(m.rank+place[1], m.got[place[0]:][:1], m.s.hidden))
		weights[to] = float32(m.rank + 1)
	}
	out, home := make([]byte, in.tokens*rb), make([]float32, in.tokens*k)
	err := m.gather(&routing.GatherArgs{
		X: x, Hidden: m.s.hidden, Out: out, WithWeights: true, Weights: weights, OutWeights: home, Bias: in.bias,
		Layout: routing.Layout{Expanded: true, Alignment: alignment}, Timeout: -1,
	})
	if err != nil {
		return err
	}
	return m.checkGathered(out, home, func(rank int, from row) []byte { return m.sumOf(rank, from) })
}

// sumOf adds one rank's rows of a token up, in order of k.
func (m *member) sumOf(rank int, from row) []byte {
	sum := make([]float32, m.s.hidden)
	for k, id := range m.ins[from.source].ids[from.token*m.s.topK:][:m.s.topK] {
		if id < 0 || int(id)/m.s.local() != rank {
			continue
		}
		y := outputs(rank+k, []row{from}, m.s.hidden)
		for h := range sum {
			sum[h] += bf16At(y, h)
		}
	}
	return roundRow(sum)
}

func roundRow(sum []float32) []byte {
	y := make([]byte, 2*len(sum))
	for h, v := range sum {
		binary.LittleEndian.PutUint16(y[2*h:], toBF16(v))
	}
	return y
}

func (m *member) checkGathered(out []byte, home []float32, rowOf func(rank int, from row) []byte) error {
	in, rb := &m.ins[m.rank], 2*m.s.hidden
	for t := range in.tokens {
		sum := make([]float32, m.s.hidden)
		add := func(y []byte) {
			for h := range sum {
				sum[h] += bf16At(y, h)
			}
		}
		for _, bias := range in.bias {
			if bias != nil {
				add(bias[t*rb:])
			}
		}
		for r := range m.s.ranks {
			if in.goes(m.s, t, r) {
				add(rowOf(r, row{m.rank, t}))
			}
		}
		if !bytes.Equal(out[t*rb:][:rb], roundRow(sum)) {
			return fmt.Errorf("token %d differs", t)
		}
		for k, id := range in.ids[t*m.s.topK:][:m.s.topK] {
			want := float32(0)
			if id >= 0 {
				want = float32(int(id)/m.s.local() + 1)
			}
			if got := home[t*m.s.topK+k]; got != want {
				return fmt.Errorf("weight %d of token %d is %v, want %v", k, t, got, want)
			}
		}
	}
	return nil
}

// TestAgainstPlainLoops compares all forms with plain loops over all ranks' inputs: tokens that go
// nowhere, experts twice in a token, ranks without tokens, one round and several.
func TestAgainstPlainLoops(t *testing.T) {
	for seed := range uint64(24) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		ranks := 1 + rnd.IntN(6)
		s := shape{
			ranks: ranks, topK: 1 + rnd.IntN(8), experts: ranks * (1 + rnd.IntN(4)), hidden: 8 * (1 + rnd.IntN(16)), extra: rnd.IntN(3) * rnd.IntN(40),
		}
		w := newWorld(t, oneHost(ranks), []int{16, 1000}[seed%2])
		for range 2 {
			ins := make([]input, ranks)
			for r := range ins {
				ins[r] = randomInput(rnd, s, rnd.IntN(2)*rnd.IntN(90))
			}
			w.each(func(rank int) error { return allForms(w.groups[rank], rank, s, ins) })
		}
	}
}

// TestRoundsSmallerThanTheGroup: M is smaller than R, for which every rank has a header.
func TestRoundsSmallerThanTheGroup(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 3))
	s := shape{ranks: 3, topK: 3, experts: 12, hidden: 64}
	w := newWorld(t, oneHost(s.ranks), 2)
	ins := make([]input, s.ranks)
	for r := range ins {
		ins[r] = randomInput(rnd, s, 7)
	}
	w.each(func(rank int) error { return allForms(w.groups[rank], rank, s, ins) })
}

// TestRoundsWithoutRows: only the last tokens go anywhere, so first rounds have no rows.
func TestRoundsWithoutRows(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 4))
	s := shape{ranks: 3, topK: 2, experts: 6, hidden: 64}
	w := newWorld(t, oneHost(s.ranks), 8)
	ins := make([]input, s.ranks)
	for r := range ins {
		ins[r] = randomInput(rnd, s, 30)
		fill(ins[r].ids[:40], -1)
	}
	w.each(func(rank int) error { return allForms(w.groups[rank], rank, s, ins) })
}

func fill(s []int64, v int64) {
	for i := range s {
		s[i] = v
	}
}

// allForms uses two routings in turn, each several times.
func allForms(g *routing.Group, rank int, s shape, ins []input) error {
	m, err := makeRouting(g, rank, s, ins)
	if err != nil {
		return err
	}
	other, err := makeRouting(g, rank, s, ins)
	if err != nil {
		return err
	}
	for _, f := range []func() error{
		m.scatterCompact, other.gatherCompact, m.gatherCompact, other.scatterCompact,
		func() error { return m.scatterExpanded(1) }, func() error { return other.scatterExpanded(16) },
		func() error { return m.gatherExpanded(16) }, func() error { return m.gatherExpanded(1) },
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
