package membership

import (
	"sync/atomic"

	"github.com/moewire/moewire/core/group/rankset"
)

// Guard is a rank's view of the member word. Every rank of a host can write to the word, so
// a reader cannot know which process has put a wild value there. Within an epoch bits only
// go away: the guard clears and counts bits that were never there, or that come back. A bit
// that was cleared, or another epoch, is taken as if a rank had stored it. Guard is a Word.
// Safe for concurrent use.
type Guard struct {
	word func() Word
	all  rankset.Set

	seen     atomic.Uint64 // the set, as small as it was seen, of the epoch that the rank is in
	begun    atomic.Bool   // else the rank is in no epoch yet
	repaired atomic.Uint64
}

// NewGuard returns a guard of the word that a function returns, in a group with the given
// ranks.
func NewGuard(word func() Word, all rankset.Set) *Guard { return &Guard{word: word, all: all} }

// Begin tells the guard which epoch the rank is in from now on, and with which ranks.
func (g *Guard) Begin(epoch Epoch, ranks rankset.Set) {
	g.seen.Store(uint64(New(epoch, ranks.And(g.all))))
	g.begun.Store(true)
}

// Repaired returns how often the word had bits that no rank can have set.
func (g *Guard) Repaired() uint64 { return g.repaired.Load() }

// Load returns the word without bits that no rank can have set.
func (g *Guard) Load() uint64 {
	seen := g.seen.Load() // before the word: so the word is a part of it
	word := g.word()
	now := word.Load()
	if !g.begun.Load() || Members(now).Epoch() != Members(seen).Epoch() {
		return g.within(word, now)
	}
	if now&^seen != 0 {
		g.repaired.Add(1)
		swapHere(word, now, now&seen)
		return now & seen
	}
	if now != seen {
		g.seen.CompareAndSwap(seen, now) // else another caller has seen fewer ranks
	}
	return now
}

// within takes ranks that the group does not have out of a word of another epoch, and
// returns what is left: an Install that finds them there would never swap the word.
func (g *Guard) within(word Word, now uint64) uint64 {
	none := Members(now).Ranks().Minus(g.all)
	left := uint64(Members(now).Without(none))
	if !none.Empty() {
		g.repaired.Add(1)
		swapHere(word, now, left)
	}
	return left
}

// CompareAndSwap calls that of the word.
func (g *Guard) CompareAndSwap(old, next uint64) bool { return g.word().CompareAndSwap(old, next) }

// CompareAndSwapHere calls that of the word, where other hosts have copies of it.
func (g *Guard) CompareAndSwapHere(old, next uint64) bool { return swapHere(g.word(), old, next) }

func swapHere(word Word, old, next uint64) bool {
	if own, is := word.(here); is {
		return own.CompareAndSwapHere(old, next)
	}
	return word.CompareAndSwap(old, next)
}
