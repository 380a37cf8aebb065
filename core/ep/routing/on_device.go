package routing

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// DeviceScatter is the memory of a scatter on a device, in place of the slices of ScatterArgs, with the
// same shapes. These are addresses of the device; 0 means none. The memory is borrowed until the
// call has ended.
type DeviceScatter struct {
	X, Out              uint64 // 16-byte aligned
	Weights, OutWeights uint64
	Extra, OutExtra     uint64
	Stream              uint64 // what carries the call, behind what it has
}

// DeviceGather is the memory of a gather on a device, as DeviceScatter is that of a scatter.
type DeviceGather struct {
	X, Out              uint64                     // 16-byte aligned
	Bias                [protocol.NumBiases]uint64 // 16-byte aligned
	Weights, OutWeights uint64
	Stream              uint64
}

func errWhere(onDevice bool) error {
	if onDevice {
		return ep.Invalid("the memory is of a device, and the buffer is on the CPU")
	}
	return ep.Invalid("Device is nil, allowed the addresses of the call's memory")
}

// memory is one argument's.
type memory struct {
	name      string
	at, align uint64
	bytes     int
}

// checkMemory looks at addresses as far as the host can.
func checkMemory(all ...memory) error {
	for _, m := range all {
		switch {
		case m.at == 0 && m.bytes > 0:
			return ep.Invalid("%s is a null pointer, %d bytes are needed", m.name, m.bytes)
		case m.at%m.align != 0:
			return ep.Invalid("%s is at %#x, which is not a multiple of %d", m.name, m.at, m.align)
		}
	}
	return nil
}

func (r *Routing) checkDeviceScatter(a *ScatterArgs) error {
	d, rows := a.Device, r.NumRowsIn(a.Layout)
	err := checkMemory(
		memory{"x", d.X, 16, r.tokens * a.RowBytes}, memory{"out", d.Out, 16, rows * a.RowBytes},
		memory{"extra", d.Extra, 1, r.tokens * a.ExtraBytes}, memory{"out_extra", d.OutExtra, 1, rows * a.ExtraBytes},
	)
	if err != nil || !a.WithWeights {
		return err
	}
	weights, _ := r.WeightsIn(a.Layout)
	return checkMemory(memory{"topk_weights", d.Weights, 4, 4 * r.tokens * r.topK}, memory{"out_weights", d.OutWeights, 4, 4 * weights})
}

func (r *Routing) checkDeviceGather(a *GatherArgs) error {
	d, row := a.Device, int(a.RowType.RowBytes(int64(a.Hidden)))
	err := checkMemory(
		memory{"x", d.X, 16, r.NumRowsIn(a.Layout) * row}, memory{"out", d.Out, 16, r.tokens * int(a.OutType.RowBytes(int64(a.Hidden)))},
		memory{"bias[0]", d.Bias[0], 16, 0}, memory{"bias[1]", d.Bias[1], 16, 0},
	)
	if err != nil || !a.WithWeights {
		return err
	}
	weights, _ := r.WeightsIn(a.Layout)
	return checkMemory(memory{"topk_weights", d.Weights, 4, 4 * weights}, memory{"out_weights", d.OutWeights, 4, 4 * r.tokens * r.topK})
}

// sendOnDevice is send of rows on a device.
func (s *scatter) sendOnDevice(p piece, a *ep.DispatchArgs) error {
	d, args := s.args.Device, &s.args
	first, n := s.g.routeTokens(s.Routing, p, a)
	if n == 0 {
		return nil
	}
	a.Device.X = d.X + uint64(first*args.RowBytes)
	a.Device.Extra[columnWeights] = d.Weights + uint64(4*first*s.topK)
	a.Device.Extra[columnExtra] = d.Extra + uint64(first*args.ExtraBytes)
	return nil
}

// takeOnDevice is take of rows on a device.
func (s *scatter) takeOnDevice(p piece, in *incoming) error {
	rows, weights := s.g.moves[0][:0], s.g.moves[1][:0]
	for r := range s.ranks {
		first, begin, n, err := s.comes(in, r, p)
		if err != nil {
			return err
		}
		for i := range n {
			rows, weights = s.movesOf(rows, weights, first+i, begin+i)
		}
	}
	s.g.moves = [2][]ep.RowMove{rows, weights}
	d, a, from := s.args.Device, &s.args, &in.Device
	return s.g.moveAll(
		d.Stream,
		ep.RowMoves{From: from.RecvX, To: d.Out, RowBytes: a.RowBytes, Moves: rows},
		ep.RowMoves{From: from.Columns[layout.ColumnExtra+columnExtra], To: d.OutExtra, RowBytes: a.ExtraBytes, Moves: rows},
		ep.RowMoves{From: from.Columns[layout.ColumnExtra+columnWeights], To: d.OutWeights, RowBytes: 4, Moves: weights},
	)
}

// moveAll launches those moves that have something to move.
func (g *Group) moveAll(stream uint64, all ...ep.RowMoves) error {
	for i := range all {
		if m := &all[i]; len(m.Moves) > 0 && m.RowBytes > 0 {
			if err := g.device.Move(m, stream); err != nil {
				return err
			}
		}
	}
	return nil
}

// movesOf adds the moves of one row that has come, and of its weights.
func (s *scatter) movesOf(rows, weights []ep.RowMove, from, row int) (_, _ []ep.RowMove) {
	k := s.topK
	if s.places == nil {
		rows = append(rows, ep.RowMove{From: int32(from), To: int32(row)})
	}
	for i := range k {
		to, source := row*k+i, from*k+i
		switch {
		case s.places != nil && s.places.row[to] < 0:
			continue
		case s.places != nil:
			to = int(s.places.row[to])
			rows = append(rows, ep.RowMove{From: int32(from), To: int32(to)})
		case s.ids[to] < 0:
			source = -1
		}
		if s.args.WithWeights {
			weights = append(weights, ep.RowMove{From: int32(source), To: int32(to)})
		}
	}
	return rows, weights
}

func (s *scatter) clearGapsOnDevice() error {
	d, a := s.args.Device, &s.args
	weightBytes := 0
	if a.WithWeights {
		weightBytes = 4
	}
	for _, gap := range s.places.gaps {
		for _, m := range [...]struct {
			at    uint64
			width int
		}{{d.Out, a.RowBytes}, {d.OutExtra, a.ExtraBytes}, {d.OutWeights, weightBytes}} {
			if err := s.g.device.Clear(m.at+uint64(gap[0]*m.width), (gap[1]-gap[0])*m.width, d.Stream); err != nil {
				return err
			}
		}
	}
	return nil
}
