package membership

import "sync/atomic"

// Guard is a rank's view of the member word. The word lies where every rank of a host can
// write, so that who has put a wild value there cannot be known. Within an epoch bits only
// go away: those that were never there, or come back, are cleared again and counted. A bit
// that was cleared, or another epoch, is as if a rank had stored it. It is a Word. Safe for
// concurrent use.
type Guard struct {
	word func() Word
	all  uint64

	seen     atomic.Uint64 // the set, as small as it was seen, of the epoch that the rank is in
	begun    atomic.Bool   // else the rank is in no epoch yet
	repaired atomic.Uint64
}

// NewGuard guards the word that a function returns, in a group with the given ranks.
func NewGuard(word func() Word, all uint64) *Guard { return &Guard{word: word, all: all} }

// Begin says which epoch the rank is in from now on, and with whom.
func (g *Guard) Begin(epoch uint16, ranks uint64) {
	g.seen.Store(uint64(epoch)<<MaxRanks | ranks&g.all)
	g.begun.Store(true)
}

// Repaired is how often the word had bits that cannot be.
func (g *Guard) Repaired() uint64 { return g.repaired.Load() }

// Load returns the word without bits that cannot be.
func (g *Guard) Load() uint64 {
	seen := g.seen.Load() // first: the word is part of it then
	word := g.word()
	now := word.Load()
	if !g.begun.Load() || Set(now).Epoch() != Set(seen).Epoch() {
		return g.within(word, now)
	}
	if now&^seen != 0 {
		g.repaired.Add(1)
		swapHere(word, now, now&seen)
		return now & seen
	}
	if now != seen {
		g.seen.CompareAndSwap(seen, now) // else somebody has seen less
	}
	return now
}

// within takes ranks that the group does not have out of a word of another epoch, and
// returns what is left: an Install that finds them there would never swap the word.
func (g *Guard) within(word Word, now uint64) uint64 {
	none := Set(now).Ranks() &^ g.all
	if none != 0 {
		g.repaired.Add(1)
		swapHere(word, now, now&^none)
	}
	return now &^ none
}

// CompareAndSwap is that of the word.
func (g *Guard) CompareAndSwap(old, next uint64) bool { return g.word().CompareAndSwap(old, next) }

// CompareAndSwapHere is that of the word, where other hosts have copies of it.
func (g *Guard) CompareAndSwapHere(old, next uint64) bool { return swapHere(g.word(), old, next) }

func swapHere(word Word, old, next uint64) bool {
	if own, is := word.(here); is {
		return own.CompareAndSwapHere(old, next)
	}
	return word.CompareAndSwap(old, next)
}
