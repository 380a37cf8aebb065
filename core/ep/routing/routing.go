// Package routing has routings, and the two collectives over one: scatter brings rows to the
// ranks of their tokens, gather brings rows back and adds them up. A routing is ordinary memory.
// It holds no slot of the buffer, and may be used as often as its epoch lasts, in any order.
//
// Rows go in rounds of one-way operations (protocol.Use). The number of rounds follows from the
// routing and from the size of a row, so every rank knows it. docs/protocol.md has the reasons.
package routing

import (
	"sort"

	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/membership"
)

// Routing says which rows go where, on both sides. It does not change once it is made, and is
// safe for concurrent use.
type Routing struct {
	epoch   membership.Epoch
	self    int
	ranks   int
	tokens  int // T of this rank
	topK    int // 0: made without expert ids
	experts int
	longest int // the largest T of all ranks

	send      []int32 // this rank's tokens that go to each rank, ascending
	sendFirst []int   // [R + 1] where each rank's begin
	fanOut    int     // the most ranks of one token, at least 1

	source      []int32 // [N] tokens on their source ranks, ascending for each rank
	sourceFirst []int   // [R + 1] where the rows of each rank begin
	ids         []int32 // [N, K] local experts, -1 where a selection is not here
	counts      []int32 // [L] selections of each local expert, as the sources say
	here        []int32 // [L] those among the rows
}

// NumTokens is T of this rank: the rows of a scatter's x and of a gather's out.
func (r *Routing) NumTokens() int { return r.tokens }

// NumRows is N: the rows that this rank receives, in order of source rank and token.
func (r *Routing) NumRows() int { return len(r.source) }

// TopK is K, 0 for a routing that was made without expert ids.
func (r *Routing) TopK() int { return r.topK }

// NumRanks is R.
func (r *Routing) NumRanks() int { return r.ranks }

// NumExperts is E.
func (r *Routing) NumExperts() int { return r.experts }

// Counts is how many selections each local expert has, of all ranks' tokens: [L]. It is not to
// be written to.
func (r *Routing) Counts() []int32 { return r.counts }

// LocalIDs are the local experts of each row, -1 where a selection is not on this rank: [N, K].
// They are not to be written to.
func (r *Routing) LocalIDs() []int32 { return r.ids }

// SourceTokens are the tokens of the rows on their source ranks: [N]. They are not to be written
// to.
func (r *Routing) SourceTokens() []int32 { return r.source }

// RowsFrom returns where the rows of a source rank begin, and where they end.
func (r *Routing) RowsFrom(rank int) (begin, end int) {
	return r.sourceFirst[rank], r.sourceFirst[rank+1]
}

// NumTokensFor is how many tokens of this rank go to a rank.
func (r *Routing) NumTokensFor(rank int) int { return r.sendFirst[rank+1] - r.sendFirst[rank] }

// Bytes is the memory of the routing: 4*(D + N*(K + 1) + 2*L) + 16*(R + 1), where D is how many
// rows this rank sends.
func (r *Routing) Bytes() int64 {
	return int64(4*(len(r.send)+len(r.source)+len(r.ids)+len(r.counts)+len(r.here)) + 8*(len(r.sendFirst)+len(r.sourceFirst)))
}

// rounds is how many operations a call takes, with m tokens of each rank in one.
func (r *Routing) rounds(m int) int { return (r.longest + m - 1) / m }

// piece are the tokens of one round.
type piece struct{ from, to int32 }

func pieceOf(round, m int) piece {
	return piece{int32(round * m), int32(min((round+1)*m, protocol.MaxRows))}
}

// within returns the part of ascending tokens that is in the piece.
func (p piece) within(tokens []int32) (begin, end int) {
	at := func(token int32) int {
		return sort.Search(len(tokens), func(i int) bool { return tokens[i] >= token })
	}
	return at(p.from), at(p.to)
}

// sends returns the rows for a rank in a round: which of all rows for that rank they are.
func (r *Routing) sends(rank int, p piece) []int32 {
	tokens := r.send[r.sendFirst[rank]:r.sendFirst[rank+1]]
	begin, end := p.within(tokens)
	return tokens[begin:end]
}

// receives returns which rows of this rank come from a rank in a round.
func (r *Routing) receives(rank int, p piece) (begin, end int) {
	first, last := r.RowsFrom(rank)
	begin, end = p.within(r.source[first:last])
	return first + begin, first + end
}

// sum turns numbers per rank into where each rank's begin.
func sum(num []int) (first []int) {
	first = make([]int, len(num)+1)
	for i, n := range num {
		first[i+1] = first[i] + n
	}
	return first
}

// resize returns a slice of length n, reusing memory where it can.
func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

func fill[T any](s []T, v T) {
	if len(s) == 0 {
		return
	}
	s[0] = v
	for n := 1; n < len(s); n *= 2 {
		copy(s[n:], s[:n])
	}
}
