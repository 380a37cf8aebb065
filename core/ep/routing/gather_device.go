package routing

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
)

// sendOnDevice is send of rows on a device: they, or the sums of expanded ones, go to the group's room
// first, one behind the other, and their weights behind them.
func (c *gather) sendOnDevice(p piece, a *ep.DispatchArgs) error {
	g, d := c.g, c.args.Device
	g.to, g.terms = g.to[:0], g.terms[:0]
	rows, weights := g.moves[0][:0], g.moves[1][:0]
	for r := range c.ranks {
		begin, end := c.receives(r, p)
		for row := begin; row < end; row++ {
			rows = append(rows, ep.RowMove{From: int32(row), To: int32(len(g.to))})
			weights = c.weightMoves(weights, row, len(g.to))
			g.to = append(g.to, int64(r))
			if c.places != nil {
				g.terms = append(g.terms, c.places.row[row*c.topK:][:c.topK]...)
			}
		}
	}
	g.moves = [2][]ep.RowMove{rows, weights}
	n, room := len(g.to), g.device.Room()
	behind := room + uint64(n*c.rowBytes())
	a.TopkIdx, a.NumTokens, a.TopK = g.to, n, 1
	a.Device.X, a.Device.Extra[columnWeights] = room, behind
	if err := g.moveAll(d.Stream, ep.RowMoves{From: d.Weights, To: behind, RowBytes: 4, Moves: weights}); err != nil {
		return err
	}
	if c.places == nil {
		return g.moveAll(d.Stream, ep.RowMoves{From: d.X, To: room, RowBytes: c.rowBytes(), Moves: rows})
	}
	return g.sumAll(d.Stream, &ep.RowSums{
		Rows: d.X, Terms: g.terms, NumSums: n, NumTerms: c.topK, Out: room, Hidden: c.args.Hidden,
	})
}

func (g *Group) sumAll(stream uint64, s *ep.RowSums) error {
	if s.NumSums == 0 {
		return nil
	}
	return g.device.Sum(s, stream)
}

// weightMoves adds the moves of one row's weights.
func (c *gather) weightMoves(moves []ep.RowMove, row, to int) []ep.RowMove {
	if !c.args.WithWeights {
		return moves
	}
	for i := range c.topK {
		at := row*c.topK + i
		from := int32(at)
		switch {
		case c.places != nil:
			from = c.places.row[at]
		case c.args.OwnersOnly && c.ids[at] < 0:
			from = -1
		}
		moves = append(moves, ep.RowMove{From: from, To: int32(to*c.topK + i)})
	}
	return moves
}

// takeOnDevice adds a round's rows up on the device.
func (c *gather) takeOnDevice(p piece, in *incoming) error {
	first, n := p.of(c.tokens)
	if err := c.listTerms(p, in, first, n); err != nil {
		return err
	}
	a, d := &c.args, c.args.Device
	out := int(a.OutType.RowBytes(int64(a.Hidden)))
	sums := ep.RowSums{
		Rows: in.Device.RecvX, Terms: c.g.terms, NumSums: n, NumTerms: c.fanOut, Out: d.Out + uint64(first*out),
		Hidden: a.Hidden, RowType: a.RowType, OutType: a.OutType,
	}
	for i, bias := range d.Bias {
		if bias != 0 {
			sums.Bias[i] = bias + uint64(first*c.rowBytes())
		}
	}
	if a.WithWeights {
		sums.Weights, sums.TopK = in.Device.Columns[layout.ColumnExtra+columnWeights], c.topK
		sums.OutWeights = d.OutWeights + uint64(4*first*c.topK)
	}
	return c.g.sumAll(d.Stream, &sums)
}

// listTerms lists the rows of each token's sum, in order of rank.
func (c *gather) listTerms(p piece, in *incoming, first, n int) error {
	g := c.g
	g.terms, g.cursor = resize(g.terms, n*c.fanOut), resize(g.cursor, n)
	fill(g.terms, -1)
	fill(g.cursor, 0)
	for r := range c.ranks {
		tokens := c.sends(r, p)
		begin, come := in.from(r)
		if come != len(tokens) {
			return otherRouting(come, r, len(tokens))
		}
		for i, t := range tokens {
			at := int(t) - first
			g.terms[at*c.fanOut+g.cursor[at]] = int32(begin + i)
			g.cursor[at]++
		}
	}
	return nil
}
