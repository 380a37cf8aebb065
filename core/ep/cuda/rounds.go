package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	device "github.com/moewire/moewire/core/device/cuda"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
)

// Memory of rounds. It bounds how many tokens one takes.
const (
	roundTableBytes = 16 << 20
	roundRowBytes   = 32 << 20
	// tableBytesPerRow are those of one row that a rank sends or gets: where it goes, its moves and
	// those of its weights, the terms of its sum. A routing's own rows take less.
	tableBytesPerRow = 64 + 32*protocol.MaxTopK
	roundHeadBytes   = 4 << 20 // for the first rows of a routing, and results
)

// Rounds runs one-way operations of a buffer for collectives that the host leads: each operation is
// launched on the caller's stream, and the host waits for it. Rows come from the device, or from the
// host if DispatchArgs.X is given; then they come back to the host. One goroutine at a time.
type Rounds struct {
	b   *Buffer
	mem *device.Staging

	epoch membership.Epoch // of the collective that runs

	// The operation that was launched last.
	args   *ep.DispatchArgs
	res    Result
	stream uint64
	stage  stage
	active []byte // int32 [R]
	ranges []byte // int64 [R]
	rows   []byte // those that came, if they are the host's
}

// stage is how far an operation is.
type stage int

const (
	stageNone      stage = iota
	stageLaunched        // its results are not here yet
	stageFetching        // its rows are on their way to the host
	stageFinishing       // of what was launched behind the last operation
)

// Rounds returns the buffer's rounds, the same ones at each call. The first call allocates what they
// need: 16 MiB of the host and 48 MiB of the device. Close of the buffer frees it.
func (b *Buffer) Rounds() (*Rounds, error) {
	if err := b.usable(); err != nil {
		return nil, err // and not after an Install that waits for other ranks
	}
	b.lifecycleMu.Lock()
	defer b.lifecycleMu.Unlock()
	if err := b.usable(); err != nil || b.rounds != nil {
		return b.rounds, err
	}
	mem, err := b.dev.NewStaging(roundTableBytes, roundRowBytes)
	if err != nil {
		return nil, err
	}
	b.rounds = &Rounds{b: b, mem: mem}
	return b.rounds, nil
}

// freeRounds comes when nothing of the buffer runs on the device. Idempotent.
func (b *Buffer) freeRounds() error {
	if b.rounds == nil {
		return nil
	}
	return b.rounds.mem.Close()
}

// Tokens is M of one-way operations with such rows, the same on every rank: as many as a slab, the
// tables of a round and its rows have room for.
func (r *Rounds) Tokens(hidden int, extraRowBytes [protocol.NumExtras]int) (int, error) {
	b, ranks := r.b, int64(r.b.ranks)
	if err := b.usable(); err != nil {
		return 0, err
	}
	if b.cfg.MaxSelections < DefaultMaxSelections {
		return 0, ep.Invalid("max_selections is %d, routings need at least %d", b.cfg.MaxSelections, DefaultMaxSelections)
	}
	shape := layout.Shape{
		MaxTokens: 1, Hidden: int64(hidden), NumExperts: ranks, NumRanks: ranks,
		RowType: protocol.BF16, Flat: true, Columns: layout.Widths(false, 0, extraRowBytes),
	}
	one, err := layout.Of(shape)
	if err != nil {
		return 0, ep.Invalid("%s", err)
	}
	room := b.cfg.engine(b.self, b.ranks).SlabBytes
	m := min(
		layout.MostTokens(shape, room), DefaultMaxSelections/ranks, (roundTableBytes-roundHeadBytes)/(tableBytesPerRow*ranks),
		roundRowBytes/(ranks*(one.RowBytes+one.ColumnBytes())),
	)
	if m == 0 {
		return 0, ep.Invalid("rows of %d bytes and %d bytes of columns need %d bytes per slot, num_ep_buffer_bytes gives %d, and a round has room for %d bytes from each rank",
			one.RowBytes, one.ColumnBytes(), one.SizeBytes, room, roundRowBytes/ranks)
	}
	return int(m), nil
}

// Ready begins a collective. It refuses a stream that is captured: a graph has no host that leads it.
func (r *Rounds) Ready(stream uint64) error {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if err := r.b.usable(); err != nil {
		return err
	}
	captured, err := r.b.captures(stream)
	if err == nil && captured {
		err = ep.Invalid("the stream is captured into a graph: a routing, a scatter and a gather wait on the host, so call them before or after the capture")
	}
	r.stage, r.epoch = stageNone, r.b.Epoch()
	return err
}

// current says why the collective cannot go on. An update may have come and gone since the last
// look: then the device has ended what was launched before, and nothing of it counts.
func (r *Rounds) current() error {
	if err := r.b.usable(); err != nil {
		return err
	}
	if now := r.b.Epoch(); now != r.epoch {
		return fmt.Errorf("%w: the call began in epoch %d, and the group is in epoch %d", ep.ErrStaleHandle, r.epoch, now)
	}
	return nil
}

// Begin launches an operation. Device has its stream, and for rows on the device X and Extra; TopkIdx is
// the host's. ActiveRanks and LayoutRange are written when Wait returns nil; all of a is borrowed
// until then.
func (r *Rounds) Begin(a *ep.DispatchArgs) error {
	given := *a
	d := *a.Device
	given.Device, r.stream, r.args = &d, d.Stream, a
	if err := r.put(a, &d); err != nil {
		return r.b.broken(err)
	}
	if err := r.b.Dispatch(&given, &r.res, ep.PhaseDone); err != nil {
		return err
	}
	return r.b.broken(r.fetchResults(&d))
}

// put brings what the host has to the device.
func (r *Rounds) put(a *ep.DispatchArgs, d *ep.DeviceDispatch) (err error) {
	keepPut := func(to *uint64, table []byte) {
		if err == nil {
			*to, err = r.mem.Put(table, d.Stream)
		}
	}
	ids := make([]byte, 0, 8*len(a.TopkIdx))
	for _, id := range a.TopkIdx {
		ids = binary.LittleEndian.AppendUint64(ids, uint64(id))
	}
	active := make([]byte, 0, 4*r.b.ranks)
	for _, is := range a.ActiveRanks {
		active = binary.LittleEndian.AppendUint32(active, uint32(is))
	}
	keepPut(&d.TopkIdx, ids)
	keepPut(&d.ActiveRanks, active)
	keepPut(&d.LayoutRange, make([]byte, 8*r.b.ranks))
	if a.X != nil {
		keepPut(&d.X, a.X)
	}
	return err
}

// fetchResults has the device tell how many rows came from whom.
func (r *Rounds) fetchResults(d *ep.DeviceDispatch) (err error) {
	if r.active, err = r.mem.Fetch(d.ActiveRanks, 4*r.b.ranks, r.stream); err != nil {
		return err
	}
	if r.ranges, err = r.mem.Fetch(d.LayoutRange, 8*r.b.ranks, r.stream); err != nil {
		return err
	}
	r.stage = stageLaunched
	return r.mem.Mark(r.stream)
}

// Wait waits for the operation, for one slice at most (negative: no limit but the call's own).
func (r *Rounds) Wait(_ ep.Phase, slice time.Duration) error {
	limit := time.Now().Add(slice)
	for {
		if err := r.await(slice, r.current); err != nil {
			return err
		}
		more, err := r.advance()
		if err != nil || !more {
			return r.b.broken(err)
		}
		if slice >= 0 {
			slice = max(time.Until(limit), 0)
		}
	}
}

// advance takes what has come, and reports whether rows are still to come to the host.
func (r *Rounds) advance() (more bool, err error) {
	if r.stage != stageLaunched {
		r.stage = stageNone
		return false, nil
	}
	rows := r.readResults()
	r.mem.Reset() // nothing that was launched before runs any more
	r.stage = stageNone
	if r.args.X == nil || rows == 0 {
		return false, nil
	}
	r.stage = stageFetching
	n := rows * 2 * r.args.Hidden
	if r.rows, err = r.mem.Fetch(r.res.RecvX, n, r.stream); err != nil {
		return false, err
	}
	return true, r.mem.Mark(r.stream)
}

// readResults returns where the last row ends.
func (r *Rounds) readResults() (rows int) {
	a := r.args
	for i := range a.ActiveRanks {
		a.ActiveRanks[i] = int32(binary.LittleEndian.Uint32(r.active[4*i:]))
		v := binary.LittleEndian.Uint64(r.ranges[8*i:])
		a.LayoutRange[i] = int64(v)
		rows = max(rows, int(v>>32+v&math.MaxUint32))
	}
	r.rows = nil
	return rows
}

// Result says where the rows are, once Wait has returned nil.
func (r *Rounds) Result(res *ep.Result) error {
	*res = ep.Result{Op: uint64(r.res.Handle), Flat: true, RecvX: r.rows}
	res.Device = ep.DeviceRows{RecvX: r.res.RecvX, Columns: r.res.Columns}
	return nil
}

// Release gives an operation's slot back, behind what the stream has.
func (r *Rounds) Release(op uint64) error { return r.b.Release(Handle(op), r.stream) }
