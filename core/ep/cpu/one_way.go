package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/limits"
)

// checkOneWay checks what an operation must be that no combine follows, or whose tokens are listed. A
// slab has room for M rows of each source, so a source may have more tokens if they go to different
// ranks, or nowhere in this operation.
func (b *Buffer) checkOneWay(a *ep.DispatchArgs) error {
	switch {
	case a.Listed != nil && !a.Use.OneWay():
		return ep.Invalid("tokens are listed in a %s, allowed in scatters and gathers", a.Use)
	case !a.Flat || !a.NoRouting || a.RowType != protocol.BF16:
		return ep.Invalid("rows of a %s are not flat, not bf16, or have expert ids", a.Use)
	case !limits.NumTokens.Has(int64(a.NumTokens)):
		return ep.InRange(limits.NumTokens, a.NumTokens)
	case a.NumRouted() > a.MaxTokens && a.TopK != 1:
		return ep.Invalid("x has %d tokens for several ranks each, allowed %d", a.NumRouted(), a.MaxTokens)
	}
	if err := checkListed(a); err != nil || a.NumRouted() <= a.MaxTokens {
		return err
	}
	return b.checkPerRank(a)
}

// checkListed: receivers want the tokens of a source in order.
func checkListed(a *ep.DispatchArgs) error {
	last := int32(-1)
	for i, t := range a.Listed {
		if t <= last || int(t) >= a.NumTokens {
			return ep.Invalid("listed[%d] is token %d, allowed %d to %d", i, t, last+1, a.NumTokens-1)
		}
		last = t
	}
	return nil
}

// checkPerRank: no rank gets more tokens than a slab has room for.
func (b *Buffer) checkPerRank(a *ep.DispatchArgs) error {
	num, local := b.scratch.perRank, int64(a.NumExperts/b.ranks)
	clear(num)
	for _, id := range a.TopkIdx[:a.NumRouted()] {
		if id < 0 {
			continue
		}
		r := id / local
		if num[r]++; num[r] > a.MaxTokens {
			return ep.Invalid("x has more than %d tokens for rank %d", a.MaxTokens, r)
		}
	}
	return nil
}

// oneWayDiffers is differs for what such an operation's rows are. M follows from it, and the
// size of a routing's first rows from E.
func (p *params) oneWayDiffers(o *params) (name string, mine, theirs any, ok bool) {
	switch {
	case p.experts != o.experts:
		return "num_experts", p.experts, o.experts, true
	case p.hidden != o.hidden:
		return "bytes per row", 2 * p.hidden, 2 * o.hidden, true
	}
	for i, what := range [protocol.NumExtras]string{"topk_weights", "extra"} {
		if a, b := p.extraBytes(i), o.extraBytes(i); a != b {
			return fmt.Sprintf("bytes per token of %s (0: none)", what), a, b, true
		}
	}
	return "", nil, nil, false
}

// mostTokens is how many tokens a source of such an operation may have.
func (p *params) mostTokens() uint64 {
	if p.use.OneWay() {
		return protocol.MaxRows
	}
	return p.maxTokens
}

// NoneHeld returns ep.ErrHeld while a caller holds an operation that was never combined.
func (b *Buffer) NoneHeld() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for j := range b.slots {
		if s := &b.slots[j]; s.held() {
			return ep.HeldOneWay(b.numHeld(), s.op)
		}
	}
	return nil
}

// LeaveEpoch ends this rank's part in an epoch, for a caller whose exchange of several
// operations cannot go on: a rank that waits for its next one goes on without it. Calls return
// why until an update. It does nothing once this rank is in another epoch: the caller's has
// ended with the update.
func (b *Buffer) LeaveEpoch(epoch membership.Epoch, why error) {
	b.endPart(epoch, func() { b.leaveFor(membership.Updating, why) })
}

// Surrender is LeaveEpoch for a caller that has found rows in this rank's memory which no rank sends.
// That is a violation, and calls return why, an ep.ErrFenced, until an update.
func (b *Buffer) Surrender(epoch membership.Epoch, why error) {
	b.endPart(epoch, func() {
		b.countViolation(b.self)
		b.noteLost(b.self, why.Error())
		b.leaveFor(membership.Fenced, why)
		b.damaged = true
	})
}

// endPart calls leave, with Buffer.mu held, if this rank takes part in the epoch.
func (b *Buffer) endPart(epoch membership.Epoch, leave func()) {
	if b.enter() != nil {
		return
	}
	defer b.users.Done()
	b.drainMessages()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err() == nil && b.epoch == epoch && b.life.IsMember() {
		leave()
	}
}

// oneWaySlabBytes is the size of a slab if a buffer of no size begins with one-way rows. They
// go in rounds, so a larger slab only saves rounds.
const oneWaySlabBytes = 32 << 20

// OneWayTokens returns M of one-way operations with rows of such a size: as many as a slab
// holds. It is the same on every rank. If no operation has sized the buffer yet, this does.
func (b *Buffer) OneWayTokens(hidden int, extraRowBytes [protocol.NumExtras]int) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return 0, err
	}
	shape := layout.Shape{
		MaxTokens: 1, Hidden: int64(hidden), NumExperts: int64(b.ranks), NumRanks: int64(b.ranks),
		RowType: protocol.BF16, Flat: true, OneWay: true, Columns: layout.Widths(false, 0, extraRowBytes),
	}
	least, err := layout.Of(shape)
	if err != nil {
		return 0, ep.Invalid("%s", err)
	}
	if b.slabBytes == 0 {
		if err := b.addSlabs(max(least.SizeBytes, oneWaySlabBytes)); err != nil {
			return 0, err
		}
	}
	m := layout.MostTokens(shape, b.slabBytes)
	if m == 0 {
		return 0, ep.Invalid("rows of %d bytes and %d bytes of columns need %d bytes per slot, the buffer has %d (num_ep_buffer_bytes, or its first dispatch)",
			2*hidden, least.ColumnBytes(), least.SizeBytes, b.slabBytes)
	}
	return int(m), nil
}

// Epoch returns the epoch that this rank has joined.
func (b *Buffer) Epoch() membership.Epoch {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.epoch
}
