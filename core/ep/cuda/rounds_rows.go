package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
)

// Room is memory on the device for rows that a round sends: as many as come in one, with their
// columns.
func (r *Rounds) Room() uint64 { return r.mem.Rows() }

// Move launches moves of rows.
func (r *Rounds) Move(m *ep.RowMoves, stream uint64) error {
	table := make([]byte, 0, 8*len(m.Moves))
	for _, one := range m.Moves {
		table = binary.LittleEndian.AppendUint32(table, uint32(one.From))
		table = binary.LittleEndian.AppendUint32(table, uint32(one.To))
	}
	return r.withTable(table, stream, func(at uint64) error {
		return r.b.engine.Move(&device.Moves{
			From: m.From, To: m.To, Table: at, NumRows: len(m.Moves), RowBytes: m.RowBytes, Stream: stream,
		})
	})
}

// Sum launches sums of rows.
func (r *Rounds) Sum(s *ep.RowSums, stream uint64) error {
	table := make([]byte, 0, 4*len(s.Terms))
	for _, row := range s.Terms {
		table = binary.LittleEndian.AppendUint32(table, uint32(row))
	}
	return r.withTable(table, stream, func(at uint64) error {
		return r.b.engine.Sum(&device.Sums{
			Rows: s.Rows, Bias: s.Bias, Terms: at, Out: s.Out, Weights: s.Weights, OutWeights: s.OutWeights,
			NumSums: s.NumSums, NumTerms: s.NumTerms, Hidden: s.Hidden, TopK: s.TopK,
			RowType: s.RowType, OutType: s.OutType, Stream: stream,
		})
	})
}

// withTable launches what reads a table.
func (r *Rounds) withTable(table []byte, stream uint64, launch func(at uint64) error) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if err := r.b.usable(); err != nil {
		return err
	}
	at, err := r.mem.Put(table, stream)
	if err == nil {
		err = launch(at)
	}
	return r.b.launched(err)
}

// Clear zeroes memory on the device, behind what the stream has.
func (r *Rounds) Clear(at uint64, n int, stream uint64) error {
	return r.b.broken(r.mem.Clear(at, n, stream))
}

// Finish waits until the device has done what was launched on the stream, for one slice at most.
func (r *Rounds) Finish(stream uint64, slice time.Duration) error {
	if r.stage != stageFinishing {
		if err := r.mem.Mark(stream); err != nil {
			return r.b.broken(err)
		}
		r.stage = stageFinishing
	}
	if err := r.await(slice, r.current); err != nil {
		return err
	}
	r.stage = stageNone
	r.mem.Reset()
	return nil
}

// Settle waits until nothing that was launched on the stream uses memory of the call any more. Kernels
// of this rank wait for no other rank by then; what the caller put on the stream before may last.
func (r *Rounds) Settle(stream uint64) error {
	if err := r.mem.Mark(stream); err != nil {
		return err
	}
	err := r.await(r.b.cfg.DrainTimeout, func() error { return nil })
	if errors.Is(err, ep.ErrInProgress) {
		err = fmt.Errorf("after %v the stream has not done what was launched for a call that failed: its memory is still in use", r.b.cfg.DrainTimeout)
	}
	if err == nil {
		r.stage = stageNone
		r.mem.Reset()
	}
	return err
}

// The host asks the device at first often, then rarely: a round takes some 10 µs, and what is before
// it on the stream may take long.
const (
	askFirst = 10 * time.Microsecond
	askLast  = time.Millisecond
)

// await waits until the device has done what was marked last, for one slice at most, or until going
// returns an error: this rank may be out while work of the caller's keeps the stream. A negative
// slice has no limit: kernels have their deadlines, and what the caller has put on the stream before
// is the caller's.
func (r *Rounds) await(slice time.Duration, going func() error) error {
	limit := time.Now().Add(slice)
	for pause := askFirst; ; pause = min(2*pause, askLast) {
		done, err := r.mem.Done() // before the look at this rank: kernels say why they have ended
		if err != nil {
			return r.b.broken(err)
		}
		if err := going(); err != nil || done {
			return err
		}
		if slice >= 0 && !time.Now().Before(limit) {
			return ep.ErrInProgress
		}
		time.Sleep(pause)
	}
}

// broken ends this rank's part in its epoch when the device refuses something in the middle of a call.
func (b *Buffer) broken(err error) error {
	if err != nil {
		b.Abandon(err)
	}
	return err
}
