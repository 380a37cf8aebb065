package cpu

import (
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/op"
)

// members returns the ranks that are in the set of our epoch: none once the
// group has gone on to another one.
func (b *Buffer) members() rankset.Set { return b.membersOf(b.epoch) }

// Members returns the members of this rank's epoch: none when the group
// has gone on to another epoch without this rank, and after Close.
func (b *Buffer) Members() rankset.Set {
	if b.enterClosed() != nil {
		return rankset.Set{}
	}
	defer b.users.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.members()
}

// Membership returns the ranks that are in the group now, whatever its epoch, then that
// epoch, and how many ranks this one has fenced. The ranks lack this rank's bit when the
// epoch is not the one that it joined. Zeros after Close.
func (b *Buffer) Membership() (ranks rankset.Set, epoch membership.Epoch, lost uint64) {
	if b.enterClosed() != nil {
		return rankset.Set{}, 0, 0
	}
	defer b.users.Done()
	b.mu.Lock()
	defer b.mu.Unlock()
	set := membership.Members(b.word.Load())
	ranks = set.Ranks()
	if set.Epoch() != b.epoch {
		ranks = ranks.Without(b.self) // the bit is another process's
	}
	return ranks, set.Epoch(), b.lost.Load()
}

// membersOf is members for waits, which do not hold Buffer.mu.
func (b *Buffer) membersOf(epoch membership.Epoch) rankset.Set {
	set := membership.Members(b.word.Load())
	if set.Epoch() != epoch {
		return rankset.Set{}
	}
	return set.Ranks()
}

// out returns the ranks that are not members. Data wins: read it before the
// words of the ranks concerned.
func (b *Buffer) out() rankset.Set { return b.all.Minus(b.members()) }

func (b *Buffer) isMember() bool { return b.life.IsMember() && b.members().Has(b.self) }

// usable says why a call cannot begin or go on: the buffer is broken, between
// two epochs, or no member any more.
func (b *Buffer) usable() error {
	if err := b.err(); err != nil {
		return err
	}
	if !b.isMember() {
		b.expelled()
		return b.life.Why()
	}
	return b.surrender()
}

// expelled ends all operations once this rank has seen that it is out. From here
// on it writes nothing to any other rank, and publishes that in `quiesced`.
func (b *Buffer) expelled() {
	if !b.life.IsMember() {
		return
	}
	b.endAll(membership.Fenced, ep.WhyFenced(b.dom))
	b.damaged = true // perhaps: others may have found a wild word in our memory
	b.quiesceNow()
}

// leaveFor ends this rank's part in its epoch: it takes itself out of the
// member set, and peers that wait for it go on. A peer that sees it out also sees that
// it is quiesced, so a rank that leaves is never taken for a lost one.
func (b *Buffer) leaveFor(state membership.State, why error) {
	b.endAll(state, why)
	b.storeQuiesced()
	membership.Leave(b.word, b.epoch, b.self)
	b.wakeAll()
}

// endAll ends all operations and handles of this epoch.
func (b *Buffer) endAll(state membership.State, why error) {
	b.life.Leave(state, why)
	for j := range b.slots {
		s := &b.slots[j]
		s.live = false
		s.endCalls(op.Failed, why)
		b.forgetWaits(s)
		b.rec.abandon(s, op.Failed)
		s.dispatch.args, s.combine.args = ep.DispatchArgs{}, ep.CombineArgs{}
	}
	b.deferred = b.deferred[:0]
}

// quiesceNow promises that this rank writes nothing more in its epoch. Steps
// are covered by Buffer.mu, which the caller holds, and every step looks at
// the rank's life or at the error first.
func (b *Buffer) quiesceNow() {
	b.storeQuiesced()
	b.wakeAll()
}

func (b *Buffer) storeQuiesced() {
	b.published.quiesced = uint64(b.epoch) + 1
	b.peers[b.self].Quiesced().Store(b.published.quiesced)
}
