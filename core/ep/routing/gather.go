package routing

import (
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
)

// GatherArgs are the rows of a gather and where the sums go. Slices are borrowed until the call
// has ended.
type GatherArgs struct {
	X      []byte // [N, Hidden], or expanded [Rows, Hidden]
	Hidden int    // a multiple of 8, the same on every rank
	// RowType is the type of X's values, and of those that travel: bf16, or float32 for compact
	// rows. The same on every rank.
	RowType protocol.DType
	Out     []byte         // [T, Hidden]
	OutType protocol.DType // bf16, or float32 with float32 rows

	// WithWeights is the same on every rank. Weights come home with their rows: [N, K], or
	// expanded [Rows].
	WithWeights bool
	Weights     []float32
	// OutWeights are [T, K]: each the sum over the ranks that the token went to, in order of rank.
	OutWeights []float32
	// OwnersOnly counts a weight only where its selection is on the rank that sends it.
	OwnersOnly bool

	Bias [protocol.NumBiases][]byte // [T, Hidden] of RowType; nil: none

	Layout  Layout // Alignment is that of the scatter
	Timeout time.Duration

	Device *DeviceGather // on a device: the memory, in place of the slices; else nil
}

// gather is one in flight.
type gather struct {
	*Routing
	g      *Group
	args   GatherArgs
	places *places
}

// Gather begins to bring rows back to the tokens that they came from, and adds them up:
// out[t] = bias 0 + bias 1 + the rows of t in order of rank, in float32, rounded once. Expanded
// rows of one token on one rank are added there first, in order of k, and rounded to bf16. A
// token that no rank got has the biases, or 0. It costs two passes over the bytes: ranks store
// their rows at the sources, which add them up.
func (g *Group) Gather(r *Routing, a *GatherArgs) (*Call, error) {
	if err := g.checkGather(r, a); err != nil {
		return nil, err
	}
	if err := g.inEpoch(r.epoch); err != nil {
		return nil, err
	}
	c := &gather{Routing: r, g: g, args: *a}
	if a.Layout.Expanded {
		c.places = r.placesOf(a.Layout)
	}
	x := &exchange{
		g: g, use: protocol.ForGather, hidden: int(a.RowType.RowBytes(int64(a.Hidden)) / 2), experts: r.ranks, timeout: a.Timeout, epoch: r.epoch,
		prepare: func(m int) (int, error) { clear(c.args.OutWeights[:c.numOutWeights()]); return r.rounds(m), nil },
		send:    c.send,
		take:    c.take,
	}
	if a.Device != nil {
		x.stream, x.send, x.take = a.Device.Stream, c.sendOnDevice, c.takeOnDevice
	}
	if a.WithWeights {
		x.extra[columnWeights] = 4 * r.topK
	}
	return g.newCall(protocol.ForGather, r.epoch, x)
}

func (c *gather) numOutWeights() int {
	if !c.args.WithWeights || c.args.Device != nil {
		return 0
	}
	return c.tokens * c.topK
}

func (g *Group) checkGather(r *Routing, a *GatherArgs) error {
	if err := a.Layout.check(r); err != nil {
		return err
	}
	if err := a.checkTypes(); err != nil {
		return err
	}
	switch {
	case a.WithWeights && r.topK == 0:
		return ep.Invalid("topk_weights are given, and the routing was made without topk_idx")
	case (a.Device != nil) != (g.device != nil):
		return errWhere(a.Device != nil)
	case a.Device != nil:
		return r.checkDeviceGather(a)
	}
	return r.checkGatherSlices(a)
}

func (r *Routing) checkGatherSlices(a *GatherArgs) error {
	rows, row, outRow := r.NumRowsIn(a.Layout), int(a.RowType.RowBytes(int64(a.Hidden))), int(a.OutType.RowBytes(int64(a.Hidden)))
	weights, perRow := r.WeightsIn(a.Layout)
	switch {
	case len(a.X) < rows*row:
		return ep.Invalid("x has %d bytes, %d rows of %d need %d", len(a.X), rows, row, rows*row)
	case len(a.Out) < r.tokens*outRow:
		return ep.Invalid("out has %d bytes, %d tokens of %d need %d", len(a.Out), r.tokens, outRow, r.tokens*outRow)
	case a.WithWeights && len(a.Weights) < weights:
		return ep.Invalid("topk_weights has %d entries, %d rows of %d need %d", len(a.Weights), rows, perRow, weights)
	case a.WithWeights && len(a.OutWeights) < r.tokens*r.topK:
		return ep.Invalid("out_weights has %d entries, [%d, %d] needs %d", len(a.OutWeights), r.tokens, r.topK, r.tokens*r.topK)
	}
	for i, bias := range a.Bias {
		if bias != nil && len(bias) < r.tokens*row {
			return ep.Invalid("bias[%d] has %d bytes, %d tokens of %d need %d", i, len(bias), r.tokens, row, r.tokens*row)
		}
	}
	return nil
}

func (a *GatherArgs) checkTypes() error {
	fp32 := a.RowType == protocol.FP32
	switch {
	case a.Hidden < protocol.RowMultiple || a.Hidden%protocol.RowMultiple != 0 || a.Hidden > protocol.MaxHidden:
		return ep.Invalid("hidden is %d, allowed multiples of %d up to %d", a.Hidden, protocol.RowMultiple, protocol.MaxHidden)
	case a.RowType != protocol.BF16 && !fp32:
		return ep.Invalid("rows of %s, allowed bf16 and float32", a.RowType)
	case fp32 && a.Layout.Expanded:
		return ep.Invalid("expanded rows of float32, allowed bf16: their sums are rounded to it")
	case a.OutType != protocol.BF16 && (a.OutType != protocol.FP32 || !fp32):
		return ep.Invalid("out of %s for rows of %s, allowed bf16, or float32 for float32", a.OutType, a.RowType)
	}
	return nil
}

// send gives a round the rows of these tokens, each for its source.
func (c *gather) send(p piece, a *ep.DispatchArgs) error {
	if c.places != nil {
		c.sendSums(p, a)
		return nil
	}
	n, g := c.NumRows(), c.g
	g.to, g.listed = g.to[:0], g.listed[:0]
	if c.args.WithWeights { // rows of other rounds may bring any
		g.weightBytes = resize(g.weightBytes, 4*n*c.topK)
		a.Extra[columnWeights] = g.weightBytes
	}
	for r := range c.ranks {
		begin, end := c.receives(r, p)
		for row := begin; row < end; row++ {
			g.to, g.listed = append(g.to, int64(r)), append(g.listed, int32(row))
		}
		if c.args.WithWeights {
			c.weightsOf(g.weightBytes[4*begin*c.topK:][:0], begin, end)
		}
	}
	a.X, a.TopkIdx, a.Listed, a.NumTokens, a.TopK = c.args.X[:n*c.rowBytes()], g.to, g.listed, n, 1
	return nil
}

func (c *gather) rowBytes() int { return int(c.args.RowType.RowBytes(int64(c.args.Hidden))) }

// sendSums adds up the expanded rows of each token, and gives a round the sums.
func (c *gather) sendSums(p piece, a *ep.DispatchArgs) {
	g, k := c.g, c.topK
	g.to, g.jobs, g.weightBytes = g.to[:0], g.jobs[:0], g.weightBytes[:0]
	for r := range c.ranks {
		begin, end := c.receives(r, p)
		for _, at := range c.places.row[begin*k : end*k] {
			g.jobs = append(g.jobs, jobOf(at))
		}
		for range end - begin {
			g.to = append(g.to, int64(r))
		}
		if c.args.WithWeights {
			g.weightBytes = c.weightsOf(g.weightBytes, begin, end)
		}
	}
	n, row := len(g.to), 2*c.args.Hidden
	g.rows = resize(g.rows, n*row)
	g.reduce(&device.ReduceBatch{
		Out: g.rows, Hidden: c.args.Hidden, TopK: k, Sources: [][]byte{c.args.X}, Jobs: g.jobs,
	})
	a.X, a.TopkIdx, a.NumTokens, a.TopK, a.Extra[columnWeights] = g.rows, g.to, n, 1, g.weightBytes
}

// jobOf is a row of the caller's, or none.
func jobOf(row int32) device.ReduceJob {
	if row < 0 {
		return device.ReduceJob{Source: -1}
	}
	return device.ReduceJob{Row: int64(row)}
}

// weightsOf appends the weights of some rows, [rows, K].
func (c *gather) weightsOf(to []byte, begin, end int) []byte {
	for i := begin * c.topK; i < end*c.topK; i++ {
		w := float32(0)
		switch {
		case c.places != nil:
			if at := c.places.row[i]; at >= 0 {
				w = c.args.Weights[at]
			}
		case !c.args.OwnersOnly || c.ids[i] >= 0:
			w = c.args.Weights[i]
		}
		to = appendFloat(to, w)
	}
	return to
}

// take adds a round's rows up.
func (c *gather) take(p piece, in *incoming) error {
	first, n := p.of(c.tokens)
	width := c.fanOut + protocol.NumBiases
	c.g.jobs = resize(c.g.jobs, n*width)
	fill(c.g.jobs, device.ReduceJob{Source: -1})
	c.g.cursor = resize(c.g.cursor, n)
	fill(c.g.cursor, protocol.NumBiases)
	c.addBiases(first, n, width)
	for r := range c.ranks {
		tokens := c.sends(r, p)
		begin, come := in.from(r)
		if come != len(tokens) {
			return otherRouting(come, r, len(tokens))
		}
		for i, t := range tokens {
			at := int(t) - first
			c.g.jobs[at*width+c.g.cursor[at]] = device.ReduceJob{Source: protocol.NumBiases, Row: int64(begin + i)}
			c.g.cursor[at]++
			c.addWeights(in, begin+i, int(t))
		}
	}
	out := int(c.args.OutType.RowBytes(int64(c.args.Hidden)))
	c.g.reduce(&device.ReduceBatch{
		Out: c.args.Out[first*out:][:n*out], Hidden: c.args.Hidden, TopK: width, RowType: c.args.RowType, OutType: c.args.OutType,
		Sources: [][]byte{c.args.Bias[0], c.args.Bias[1], in.RecvX}, Jobs: c.g.jobs,
	})
	return nil
}

// addBiases puts the biases before all rows.
func (c *gather) addBiases(first, n, width int) {
	for b, bias := range c.args.Bias {
		if bias == nil {
			continue
		}
		for i := range n {
			c.g.jobs[i*width+b] = device.ReduceJob{Source: int32(b), Row: int64(first + i)}
		}
	}
}

// addWeights adds what came with a row of a token.
func (c *gather) addWeights(in *incoming, row, token int) {
	if !c.args.WithWeights {
		return
	}
	from := in.extra(columnWeights)[4*row*c.topK:]
	for k := range c.topK {
		c.args.OutWeights[token*c.topK+k] += floatAt(from, k)
	}
}

// reduce adds rows up as they are.
func (g *Group) reduce(b *device.ReduceBatch) {
	if n := len(b.Jobs); len(g.ones) < n {
		g.ones = resize(g.ones, n)
		fill(g.ones, 1)
	}
	b.Weights = g.ones[:len(b.Jobs)]
	g.kern.Reduce(b)
}
