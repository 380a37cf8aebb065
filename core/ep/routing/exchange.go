package routing

import (
	"errors"
	"fmt"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
)

// exchange is a number of one-way operations, one after another. Every rank makes the same
// number. A rank that cannot go on leaves its epoch: else the others would wait for it.
type exchange struct {
	g       *Group
	use     protocol.Use
	hidden  int // of rows, in units of 2 bytes
	extra   [protocol.NumExtras]int
	experts int // E of the operations; R if it means nothing
	timeout time.Duration
	stream  uint64           // on a device
	epoch   membership.Epoch // of its routing
	// prepare is called once, before the first round, and says how many there are.
	prepare func(m int) (rounds int, err error)
	// send sets X, TopkIdx, NumTokens, TopK and Extra of a round. Rows on a device are set in Device.
	send func(round piece, a *ep.DispatchArgs) error
	// take reads the rows of a round: those of rank r are the n from row `first` on.
	take func(round piece, in *incoming) error

	begun   bool
	m       int
	rounds  int
	round   int
	pending Pending
	in      incoming
	args    ep.DispatchArgs
	active  []int32
	count   [1]int32
}

// incoming are the rows of one round.
type incoming struct {
	ep.Result
	ranges []int64 // [R], first row << 32 | number of rows
}

func (in *incoming) from(rank int) (first, n int) {
	v := in.ranges[rank]
	return int(v >> 32), int(v & (1<<32 - 1))
}

// drive runs rounds until the limit (zero: never). After an error other than ep.ErrInProgress
// the exchange is over.
func (x *exchange) drive(limit time.Time) error {
	if err := x.begin(); err != nil {
		return err
	}
	for x.round < x.rounds {
		if x.pending == nil {
			if err := x.g.inEpoch(x.epoch); err != nil {
				return err // the others have left that epoch, too
			}
		}
		err := x.operate(limit)
		if err == nil {
			err = x.received()
		}
		switch {
		case err == ep.ErrInProgress:
			return err
		case err != nil:
			return x.fail(err)
		}
		x.round++
	}
	return x.finish(limit)
}

// finish waits until the last rows are where they belong.
func (x *exchange) finish(limit time.Time) error {
	if x.g.device == nil {
		return nil
	}
	err := x.g.device.Finish(x.stream, left(limit))
	if err != nil && err != ep.ErrInProgress {
		x.g.engine.LeaveEpoch(x.epoch, err) // the others may wait for this rank's next call
	}
	return err
}

func (x *exchange) begin() (err error) {
	if x.begun {
		return nil
	}
	if x.g.device != nil {
		if err := x.g.device.Ready(x.stream); err != nil {
			return err
		}
	}
	if x.m, err = x.g.engine.OneWayTokens(x.hidden, x.extra); err != nil {
		return err
	}
	r := x.g.engine.NumRanks()
	x.begun, x.in.ranges, x.active = true, make([]int64, r), make([]int32, r) // it may launch something
	x.rounds, err = x.prepare(x.m)
	return err
}

// operate begins this round's operation, or goes on with it.
func (x *exchange) operate(limit time.Time) (err error) {
	if x.pending != nil {
		if err = x.pending.Wait(ep.PhaseDone, left(limit)); err == nil {
			err = x.pending.Result(&x.in.Result)
		}
		if err != ep.ErrInProgress {
			x.pending = nil
		}
		return err
	}
	if err := x.fill(); err != nil {
		return err
	}
	x.pending, err = x.g.engine.Dispatch(&x.args, &x.in.Result, ep.PhaseDone, left(limit))
	return err
}

func (x *exchange) fill() error {
	fill(x.active, 1)
	x.args = ep.DispatchArgs{
		Flat: true, Use: x.use, Hidden: x.hidden, TopK: 1, MaxTokens: x.m, NumExperts: x.experts, KeepHeld: true,
		ActiveRanks: x.active, RecvCount: x.count[:], LayoutRange: x.in.ranges, Timeout: x.timeout,
		Columns: ep.Columns{NoRouting: true, ExtraRowBytes: x.extra},
	}
	if x.g.device != nil {
		x.args.Device = &ep.DeviceDispatch{Stream: x.stream}
	}
	return x.send(x.piece(), &x.args)
}

func (x *exchange) piece() piece { return pieceOf(x.round, x.m) }

// received takes the rows of a round and gives the slot back.
func (x *exchange) received() error {
	if lost := x.lost(); lost != nil {
		return lost
	}
	err := x.take(x.piece(), &x.in)
	switch {
	case errors.Is(err, ep.ErrFenced):
		x.g.engine.Surrender(x.epoch, err)
		return err
	case err != nil:
		x.g.engine.LeaveEpoch(x.epoch, err) // the others may not have noticed
		return err
	}
	return x.g.engine.Release(x.in.Op)
}

// lost names the ranks that took no part.
func (x *exchange) lost() error {
	var ranks []int
	for r, is := range x.active {
		if is == 0 {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		return nil
	}
	return fmt.Errorf("%w: rank %v took no part in round %d of %d of a %s; update the membership, then make new routings",
		ep.ErrLost, ranks, x.round+1, x.rounds, x.use)
}

// fail ends the exchange. If the others may wait for this rank's next round, it leaves. Ranks that
// disagree all notice that in the same round.
func (x *exchange) fail(err error) error {
	nothing := errors.Is(err, ep.ErrInvalid) || errors.Is(err, ep.ErrHeld) // has happened in this round
	if !errors.Is(err, ep.ErrMismatch) && !(nothing && x.round == 0) {
		x.g.engine.LeaveEpoch(x.epoch, err)
	}
	return err
}

// hasBegun reports whether other ranks may wait for this one.
func (x *exchange) hasBegun() bool { return x.begun && (x.round > 0 || x.pending != nil) }
