package routing

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/device"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

// Columns of scattered and gathered rows.
const (
	columnWeights = 0
	columnExtra   = 1
)

// ScatterArgs are the rows of a scatter and where they go. Slices are borrowed until the call
// has ended; the results stay the caller's.
type ScatterArgs struct {
	X        []byte // [T, RowBytes]
	RowBytes int    // a multiple of 16, the same on every rank
	Out      []byte // [N, RowBytes], or expanded [Rows, RowBytes]; more is not written to

	WithWeights bool      // the same on every rank
	Weights     []float32 // [T, K]
	OutWeights  []float32 // [N, K], 0 where a selection is not here; expanded [Rows]

	Extra      []byte // [T, ExtraBytes]
	ExtraBytes int    // of a token's row, the same on every rank, at most limits.ExtraRowBytes; 0: none
	OutExtra   []byte // as Out

	Layout  Layout
	Timeout time.Duration // of each wait for other ranks; negative: none

	Device *DeviceScatter // on a device: the memory, in place of the slices; else nil
}

// scatter is one in flight.
type scatter struct {
	*Routing
	g      *Group
	args   ScatterArgs
	places *places
}

// Scatter begins to bring this rank's rows to the ranks of their tokens: in order of source
// rank and token, or expanded by expert. It costs two passes over the bytes: the source stores
// rows at their ranks, which copy them to Out.
func (g *Group) Scatter(r *Routing, a *ScatterArgs) (*Call, error) {
	if err := g.checkScatter(r, a); err != nil {
		return nil, err
	}
	if err := g.inEpoch(r.epoch); err != nil {
		return nil, err
	}
	s := &scatter{Routing: r, g: g, args: *a}
	if a.Layout.Expanded {
		s.places = r.placesOf(a.Layout)
	}
	x := &exchange{
		g: g, use: protocol.ForScatter, hidden: a.RowBytes / 2, experts: r.ranks, timeout: a.Timeout, epoch: r.epoch,
		prepare: func(m int) (int, error) { return r.rounds(m), s.clearGaps() },
		send:    s.send,
		take:    s.take,
	}
	if a.Device != nil {
		x.stream, x.send, x.take = a.Device.Stream, s.sendOnDevice, s.takeOnDevice
	}
	if a.WithWeights {
		x.extra[columnWeights] = 4 * r.topK
	}
	x.extra[columnExtra] = a.ExtraBytes
	return g.newCall(protocol.ForScatter, r.epoch, x)
}

func (g *Group) checkScatter(r *Routing, a *ScatterArgs) error {
	switch {
	case a.Layout.check(r) != nil:
		return a.Layout.check(r)
	case a.RowBytes < 16 || a.RowBytes%16 != 0 || a.RowBytes > 2*protocol.MaxHidden:
		return ep.Invalid("a row has %d bytes, allowed multiples of 16 up to %d", a.RowBytes, 2*protocol.MaxHidden)
	case a.WithWeights && r.topK == 0:
		return ep.Invalid("topk_weights are given, and the routing was made without topk_idx")
	case !limits.ExtraRowBytes.Has(int64(a.ExtraBytes)):
		return ep.InRange(limits.ExtraRowBytes, a.ExtraBytes)
	case (a.Device != nil) != (g.device != nil):
		return errWhere(a.Device != nil)
	case a.Device != nil:
		return r.checkDeviceScatter(a)
	}
	return r.checkScatterSlices(a)
}

func (r *Routing) checkScatterSlices(a *ScatterArgs) error {
	rows := r.NumRowsIn(a.Layout)
	weights, perRow := r.WeightsIn(a.Layout)
	switch {
	case len(a.X) < r.tokens*a.RowBytes:
		return ep.Invalid("x has %d bytes, %d tokens of %d need %d", len(a.X), r.tokens, a.RowBytes, r.tokens*a.RowBytes)
	case len(a.Out) < rows*a.RowBytes:
		return ep.Invalid("out has %d bytes, %d rows of %d need %d", len(a.Out), rows, a.RowBytes, rows*a.RowBytes)
	case a.WithWeights && len(a.Weights) < r.tokens*r.topK:
		return ep.Invalid("topk_weights has %d entries, [%d, %d] needs %d", len(a.Weights), r.tokens, r.topK, r.tokens*r.topK)
	case a.WithWeights && len(a.OutWeights) < weights:
		return ep.Invalid("out_weights has %d entries, %d rows of %d need %d", len(a.OutWeights), rows, perRow, weights)
	case len(a.Extra) < r.tokens*a.ExtraBytes:
		return ep.Invalid("extra has %d bytes, %d tokens of %d need %d", len(a.Extra), r.tokens, a.ExtraBytes, r.tokens*a.ExtraBytes)
	case len(a.OutExtra) < rows*a.ExtraBytes:
		return ep.Invalid("out_extra has %d bytes, %d rows of %d need %d", len(a.OutExtra), rows, a.ExtraBytes, rows*a.ExtraBytes)
	}
	return nil
}

// send gives a round this rank's rows of these tokens.
func (s *scatter) send(p piece, a *ep.DispatchArgs) error {
	first, n := s.g.routeTokens(s.Routing, p, a)
	a.X = s.args.X[first*s.args.RowBytes:][:n*s.args.RowBytes]
	if s.args.WithWeights {
		s.g.weightBytes = appendFloats(s.g.weightBytes[:0], s.args.Weights[first*s.topK:][:n*s.topK])
		a.Extra[columnWeights] = s.g.weightBytes
	}
	a.Extra[columnExtra] = s.args.Extra[first*s.args.ExtraBytes:][:n*s.args.ExtraBytes]
	return nil
}

// of is the piece's part of this rank's own tokens.
func (p piece) of(tokens int) (first, n int) {
	first = min(int(p.from), tokens)
	return first, min(int(p.to), tokens) - first
}

// routeTokens gives a round this rank's tokens, each for all of its ranks, and returns which they are.
func (g *Group) routeTokens(r *Routing, p piece, a *ep.DispatchArgs) (first, n int) {
	first, n = p.of(r.tokens)
	u := r.fanOut
	if g.device != nil {
		u = r.ranks // there the ranks' K is the same
	}
	g.to = resize(g.to, n*u)
	fill(g.to, -1)
	for rank := range r.ranks {
		for _, t := range r.sends(rank, p) {
			to := g.to[(int(t)-first)*u:][:u]
			i := 0
			for to[i] >= 0 {
				i++
			}
			to[i] = int64(rank)
		}
	}
	a.TopkIdx, a.NumTokens, a.TopK = g.to, n, u
	return first, n
}

// take copies a round's rows to their places.
func (s *scatter) take(p piece, in *incoming) error {
	copies := s.g.copies[:0]
	for r := range s.ranks {
		first, begin, n, err := s.comes(in, r, p)
		if err != nil {
			return err
		}
		if s.places == nil {
			copies = s.copyRows(copies, in, first, begin, n)
		} else {
			copies = s.copyExpanded(copies, in, first, begin, n)
		}
	}
	s.g.kern.Copy(copies)
	clear(copies) // do not keep the caller's memory reachable
	s.g.copies = copies
	return nil
}

// comes returns which rows of a round come from a rank, and where they belong.
func (s *scatter) comes(in *incoming, rank int, p piece) (first, begin, n int, err error) {
	first, n = in.from(rank)
	begin, end := s.receives(rank, p)
	if n != end-begin {
		err = otherRouting(n, rank, end-begin)
	}
	return first, begin, n, err
}

func otherRouting(come, rank, want int) error {
	return fmt.Errorf("%w: %d rows come from rank %d, the routing has %d: it uses another routing", ep.ErrMismatch, come, rank, want)
}

// copyRows takes n rows from row `first` of a round on: they are rows `to` and following.
func (s *scatter) copyRows(copies []device.CopyJob, in *incoming, first, to, n int) []device.CopyJob {
	a := &s.args
	if n == 0 {
		return copies
	}
	copies = append(copies, device.CopyJob{
		Dst: a.Out[to*a.RowBytes:][:n*a.RowBytes], Src: in.RecvX[first*a.RowBytes:][:n*a.RowBytes],
	})
	copy(a.OutExtra[to*a.ExtraBytes:][:n*a.ExtraBytes], s.extraOf(in, first, n))
	if !a.WithWeights {
		return copies
	}
	ids := s.ids[to*s.topK:][:n*s.topK]
	out := a.OutWeights[to*s.topK:][:n*s.topK]
	for i, id := range ids {
		if out[i] = 0; id >= 0 {
			out[i] = s.weightOf(in, first*s.topK+i)
		}
	}
	return copies
}

// copyExpanded is copyRows with a place for each selection.
func (s *scatter) copyExpanded(copies []device.CopyJob, in *incoming, first, from, n int) []device.CopyJob {
	a := &s.args
	for i := range n {
		src := in.RecvX[(first+i)*a.RowBytes:][:a.RowBytes]
		for k, to := range s.places.row[(from+i)*s.topK:][:s.topK] {
			if to < 0 {
				continue
			}
			copies = append(copies, device.CopyJob{Dst: a.Out[int(to)*a.RowBytes:][:a.RowBytes], Src: src})
			copy(a.OutExtra[int(to)*a.ExtraBytes:][:a.ExtraBytes], s.extraOf(in, first+i, 1))
			if a.WithWeights {
				a.OutWeights[to] = s.weightOf(in, (first+i)*s.topK+k)
			}
		}
	}
	return copies
}

func (s *scatter) extraOf(in *incoming, first, n int) []byte {
	if s.args.ExtraBytes == 0 {
		return nil
	}
	return in.extra(columnExtra)[first*s.args.ExtraBytes:][:n*s.args.ExtraBytes]
}

func (s *scatter) weightOf(in *incoming, i int) float32 {
	return floatAt(in.extra(columnWeights), i)
}
