package cpu

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/op"
)

// Release tells every rank that this rank is done with operation n. Its rows
// may be overwritten from now on.
func (b *Buffer) Release(n uint64) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.users.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.begin(); err != nil {
		return err
	}
	s, err := b.find(n)
	if err != nil {
		return err
	}
	b.release(s, op.ErrCancelled)
	return nil
}

// releaseCombined releases the combined handles, as the next call that is not
// a combine of the same handle does. A combine with a hook that has not run stays.
func (b *Buffer) releaseCombined(except *slot) {
	for j := range b.slots {
		if s := &b.slots[j]; s != except && s.combines > 0 && !s.combine.pending() {
			b.release(s, op.ErrCancelled)
		}
	}
}

func (b *Buffer) release(s *slot, why error) { b.releaseAs(s, op.Cancelled, why) }

// releaseAs ends the slot's operation. The released bit comes before the
// final done: a rank that wants to combine it gets an error, never a wait without end.
func (b *Buffer) releaseAs(s *slot, state op.State, why error) {
	if !s.live {
		return
	}
	published := s.combines
	if s.combine.pending() && s.combine.published {
		published++
	}
	s.live = false
	gaveUp := s.dispatch.pending()
	s.endCalls(state, why)
	b.forgetWaits(s)
	b.rec.abandon(s, state)
	s.dispatch.args, s.combine.args = ep.DispatchArgs{}, ep.CombineArgs{}
	if s.isOpen() {
		if gaveUp || !b.exchanges(s) { // a rank with the other form may wait for an answer
			b.refuseRowOrder(s.own, s.op)
		}
		b.publishYReady(s.index, protocol.Counted(s.op, published, true))
	}
	for r := range s.sent.All() {
		s.dst[r].Word(layout.Done(b.self)).Store(protocol.Counted(s.op, s.combines, true))
	}
	if !s.unsent.Empty() {
		b.deferWrites(s, s.unsent, !s.isOpen())
	}
	b.wakeAll()
	if b.isMember() {
		_ = b.progress() // the next call tries again, and reports it
	}
}
