package multihost

import (
	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
)

// word is the members word of a group with remote ranks: this host's page, and the
// agreement for a rank that would take others out.
type word struct {
	page domain.MemberWord
	v    *view
	self rankset.Set // this rank's bit
}

var _ domain.MemberWord = (*word)(nil)

// Load is what is known on this host.
func (w *word) Load() uint64 { return w.page.Load() }

// CompareAndSwap begins an epoch, or takes this rank itself out, at once.
// Others are taken out when that has been agreed on: until then it returns
// false, and the word stays as it was.
func (w *word) CompareAndSwap(old, next uint64) bool {
	if epochOf(old) != epochOf(next) {
		return w.page.CompareAndSwap(old, next)
	}
	removals, back := ranksOf(old).Minus(ranksOf(next)), ranksOf(next).Minus(ranksOf(old))
	switch {
	case !back.Empty() || removals.Empty():
		return false // no rank comes back in the same epoch
	case removals != w.self:
		return w.v.ask(old, removals)
	}
	ours := w.v.isOf(epochOf(old))
	if ours {
		w.v.sendBeat(nil) // a rank that learns that we are out can see whether we are quiesced
	}
	if !w.page.CompareAndSwap(old, next) {
		return false
	}
	if ours {
		w.v.leave()
	}
	return true
}

// CompareAndSwapHere changes this host's page alone. A rank that takes a rank of this
// host out has left the epoch itself, and met without it: there is no other rank to agree
// with. To the ranks of this host it is as if that rank had left by itself (learn).
func (w *word) CompareAndSwapHere(old, next uint64) bool { return w.page.CompareAndSwap(old, next) }

// isOf reports whether an epoch is this rendezvous's.
func (v *view) isOf(epoch membership.Epoch) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.concerns(epoch)
}
