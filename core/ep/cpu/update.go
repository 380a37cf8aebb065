package cpu

import (
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/suspicion"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// Prepare ends this rank's part in its epoch, for an update of the membership:
// all operations end with ErrUpdating, handles are stale, and this rank writes
// nothing more to any rank until Install. It may be called again. The rank leaves
// the old epoch: a rank that still waits for it there goes on without it.
func (b *Buffer) Prepare() (ep.Standing, error) {
	if err := b.enter(); err != nil {
		return ep.Standing{}, err
	}
	defer b.users.Done()
	b.drainMessages()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err(); err != nil {
		return ep.Standing{}, err
	}
	b.leaveFor(membership.Updating, ep.ErrBetweenEpochs)
	st := ep.Standing{Epoch: b.epoch, Next: b.next}
	if seen := membership.Members(b.word.Load()).Epoch(); seen.IsAfter(b.epoch) {
		st.Epoch = seen // else it is a wild one: the group does not go back
	}
	for j := range b.slots {
		if s := &b.slots[j]; s.own != nil {
			st.Next = max(st.Next, s.served+1)
		}
	}
	return st, nil
}

// Install begins an epoch: all of its ranks have met in the domain, have
// called Prepare (joiners: made their buffer with Config.Joining), and call
// this with equal arguments. base is a number that no operation has had.
// commit, if not nil, puts the ranks that have met in the places of the old
// ones in the domain.
func (b *Buffer) Install(epoch membership.Epoch, base uint64, commit func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.err(); err != nil {
		return err
	}
	if err := ep.MayInstall(&b.life, b.epoch, epoch); err != nil {
		return err
	}
	b.unready() // looks at the old ones
	if commit != nil {
		if err := commit(); err != nil {
			return err
		}
	}
	b.peers = b.meetPeers() // the old ones' control pages may be gone
	b.connectRemote()
	b.restoreOwn()
	if err := b.beginEpoch(epoch); err != nil {
		b.life.Leave(membership.Updating, ep.ErrFenced) // Install may be called again
		return err
	}
	b.epoch, b.base, b.next, b.violators, b.damaged = epoch, base, base, rankset.Set{}, false
	b.losses.Reset()
	b.known = b.members()
	b.rec.Area.SetEpoch(epoch)
	if err := b.reopenAll(); err != nil {
		return err // Updating still: it may be called again
	}
	b.life.Join()
	b.startPump()
	return nil
}

// beginEpoch puts the epoch into the member word. It fails when the group has gone on, or
// has begun this epoch from another rendezvous: with ranks that have not been to ours.
func (b *Buffer) beginEpoch(epoch membership.Epoch) error {
	present := b.dom.Present()
	if !membership.Install(b.word, epoch, present) {
		return fmt.Errorf("%w: epoch %d is over already", ep.ErrFenced, epoch)
	}
	b.word.Begin(epoch, b.all)
	if !b.membersOf(epoch).Minus(present).Empty() {
		return fmt.Errorf("%w: epoch %d was begun by another rendezvous", ep.ErrFenced, epoch)
	}
	b.word.Begin(epoch, present)
	return nil
}

// meetPeers makes the peers, with the control pages of every rank that has come.
func (b *Buffer) meetPeers() []suspicion.Peer {
	peers := make([]suspicion.Peer, b.ranks)
	for r := range peers {
		peers[r] = suspicion.NewPeer(b.dom, r)
	}
	return peers
}

// unready poisons the slabs of the old epoch for the ranks that have not said that
// they are done. The ranks that came to the rendezvous are quiesced by then.
func (b *Buffer) unready() {
	for j := range b.slots {
		if s := &b.slots[j]; s.own != nil {
			unfinished := b.unfinished(s).Without(b.self)
			b.poison(s, unfinished)
			s.a = s.a.Minus(unfinished) // poison them once, even if this is called again
		}
	}
}

// reopenAll opens every slot for the first operation of the epoch, once there
// is memory for all: a rank that sees one open may write at once.
func (b *Buffer) reopenAll() error {
	for j := range b.slots {
		if err := b.empty(&b.slots[j]); err != nil {
			return err
		}
	}
	if b.slabBytes == 0 && b.cfg.NumBytes > 0 {
		return b.addSlabs(layout.SlabBytes(b.cfg.NumBytes, int64(len(b.slots))))
	}
	if b.slabBytes > 0 {
		if err := b.reserveShadows(b.slabBytes); err != nil {
			return err
		}
	}
	for j := range b.slots {
		if s := &b.slots[j]; s.own != nil {
			b.openSlot(s, b.firstFor(j))
		}
	}
	return nil
}

// empty makes a slot ready for another epoch.
func (b *Buffer) empty(s *slot) error {
	s.op, s.live, s.sent, s.unsent = 0, false, rankset.Set{}, rankset.Set{}
	clear(s.dst)
	clear(s.warm)
	if s.own == nil {
		return nil
	}
	if len(s.own.suspects) > 0 {
		return b.replaceSlab(s)
	}
	b.clean(s, false)
	return nil
}
