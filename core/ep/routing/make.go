package routing

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

// Args say where this rank's tokens go. Slices are borrowed until the call has ended.
type Args struct {
	NumTokens  int     // T
	NumExperts int     // E, the same on every rank, a multiple of R
	TopK       int     // K, the same on every rank; 0: no expert ids
	TopkIdx    []int64 // [T, K], -1 selects nothing; an expert may come twice in a token
	// InRank says which ranks a token goes to, [T, R], 0 or 1. nil: to those of its experts. With
	// K = 0 it is needed.
	InRank []byte
	// ExpertCounts are this rank's selections of each expert, [E]. nil: those of TopkIdx.
	ExpertCounts []int32
	Timeout      time.Duration // of each wait for other ranks; negative: none
	Stream       uint64        // of a group on a device: what carries the exchange, behind what it has
}

// maker is a routing that is being made.
type maker struct {
	*Routing
	g       *Group
	args    Args
	head    []byte // what this rank tells each of the others, [R, head bytes]
	listed  []byte // this rank's tokens with their expert ids, [T, list bytes]
	got     []header
	come    []come
	sending []int // tokens that go to each rank
}

// header is what a rank tells another one first.
type header struct{ tokens, rows, topK uint32 }

// come is what has come from a rank after its header: tokens and local experts, as in a Routing.
type come struct{ source, ids []int32 }

const headerWords = 4

// Make begins to make a routing. It may be used once the call has ended well.
//
// ErrInvalid, op.ErrFull (too many calls have not ended): nothing has happened. ErrMismatch: the
// ranks disagree about E or K, and no rank has a routing. ErrLost: a rank is lost, or more comes to
// this one than a routing holds; this rank has left its epoch. ErrFenced: so it has, and what came is
// such as no rank sends, which counts as a violation. What other ranks say that they send takes no
// memory before it comes.
func (g *Group) Make(a *Args) (*Routing, *Call, error) {
	ranks := g.engine.NumRanks()
	if err := a.check(ranks); err != nil {
		return nil, nil, err
	}
	m := &maker{g: g, args: *a, got: make([]header, ranks), Routing: &Routing{
		epoch: g.engine.Epoch(), self: g.engine.Rank(), ranks: ranks,
		tokens: a.NumTokens, topK: a.TopK, experts: a.NumExperts,
	}}
	m.plan()
	c, err := g.newCall(protocol.ForRouting, m.epoch, m.headers(), m.lists())
	if err != nil {
		return nil, nil, err
	}
	return m.Routing, c, nil
}

func (a *Args) check(ranks int) error {
	localExperts := a.NumExperts / ranks
	switch {
	case !limits.NumTokens.Has(int64(a.NumTokens)):
		return ep.InRange(limits.NumTokens, a.NumTokens)
	case !limits.NumExperts.Has(int64(a.NumExperts)):
		return ep.InRange(limits.NumExperts, a.NumExperts)
	case a.NumExperts%ranks != 0 || !limits.LocalExperts.Has(int64(localExperts)):
		return ep.Invalid("num_experts is %d, allowed multiples of num_ranks %d with at most %d per rank", a.NumExperts, ranks, limits.LocalExperts.Most)
	case a.TopK != 0 && !limits.TopK.Has(int64(a.TopK)):
		return ep.InRange(limits.TopK, a.TopK)
	case !limits.Selections.Has(int64(a.NumTokens) * int64(a.TopK)):
		return ep.InRange(limits.Selections, a.NumTokens*a.TopK)
	case a.TopK == 0 && a.InRank == nil && a.NumTokens > 0:
		return ep.Invalid("neither topk_idx nor is_token_in_rank is given")
	case len(a.TopkIdx) < a.NumTokens*a.TopK:
		return ep.Invalid("topk_idx has %d entries, [%d, %d] needs %d", len(a.TopkIdx), a.NumTokens, a.TopK, a.NumTokens*a.TopK)
	case a.InRank != nil && len(a.InRank) < a.NumTokens*ranks:
		return ep.Invalid("is_token_in_rank has %d entries, [%d, %d] needs %d", len(a.InRank), a.NumTokens, ranks, a.NumTokens*ranks)
	case a.ExpertCounts != nil && len(a.ExpertCounts) < a.NumExperts:
		return ep.Invalid("num_tokens_per_expert has %d entries, allowed num_experts %d", len(a.ExpertCounts), a.NumExperts)
	}
	return a.checkValues()
}

func (a *Args) checkValues() error {
	for i, id := range a.TopkIdx[:a.NumTokens*a.TopK] {
		if id < -1 || id >= int64(a.NumExperts) {
			return ep.Invalid("topk_idx[%d, %d] is %d, allowed -1 to %d", i/a.TopK, i%a.TopK, id, a.NumExperts-1)
		}
	}
	if a.ExpertCounts == nil {
		return nil
	}
	for i, n := range a.ExpertCounts[:a.NumExperts] {
		if n < 0 {
			return ep.Invalid("num_tokens_per_expert[%d] is %d, allowed 0 and more", i, n)
		}
	}
	return nil
}

// plan finds the ranks of every token, and makes the tokens' list of each rank.
func (m *maker) plan() {
	num, fanOut := make([]int, m.ranks), 1
	m.eachToken(func(_, r, nth int) {
		num[r]++
		fanOut = max(fanOut, nth+1)
	})
	m.fanOut, m.sending, m.sendFirst = fanOut, num, sum(num)
	m.send = make([]int32, m.sendFirst[m.ranks])
	at := append([]int(nil), m.sendFirst...)
	m.eachToken(func(t, r, _ int) {
		m.send[at[r]] = int32(t)
		at[r]++
	})
}

// eachToken visits each rank of each token, in order; nth counts those of one token.
func (m *maker) eachToken(visit func(t, r, nth int)) {
	in := make([]byte, m.ranks)
	for t := range m.tokens {
		m.ranksOf(t, in)
		nth := 0
		for r, is := range in {
			if is != 0 {
				visit(t, r, nth)
				nth++
			}
		}
	}
}

func (m *maker) ranksOf(t int, in []byte) {
	if m.args.InRank != nil {
		copy(in, m.args.InRank[t*m.ranks:][:m.ranks])
		return
	}
	clear(in)
	local := int64(m.experts / m.ranks)
	for _, id := range m.args.TopkIdx[t*m.topK:][:m.topK] {
		if id >= 0 {
			in[id/local] = 1
		}
	}
}

// padded is a number of bytes that a row can have.
func padded(bytes int) int {
	const multiple = 2 * protocol.RowMultiple
	return (bytes + multiple - 1) / multiple * multiple
}

// headers is the exchange in which the ranks tell how many tokens they have, how many rows
// will come, and how many selections each expert has. Each rank has one row for each.
func (m *maker) headers() *exchange {
	local := m.experts / m.ranks
	bytes := padded(4 * (headerWords + local))
	m.counts, m.here = make([]int32, local), make([]int32, local)
	return &exchange{
		g: m.g, use: protocol.ForRouting, hidden: bytes / 2, experts: m.experts, timeout: m.args.Timeout, epoch: m.epoch,
		prepare: func(int) (int, error) { return 1, m.writeHeaders(bytes) },
		stream:  m.args.Stream,
		send: func(_ piece, a *ep.DispatchArgs) error {
			m.g.to = resize(m.g.to, m.ranks)
			for r := range m.g.to {
				m.g.to[r] = int64(r * local)
			}
			a.X, a.TopkIdx, a.NumTokens = m.head, m.g.to, m.ranks
			return nil
		},
		take: func(_ piece, in *incoming) error { return m.readHeaders(in, bytes) },
	}
}

// writeHeaders makes the rows for all ranks.
func (m *maker) writeHeaders(bytes int) error {
	m.head = make([]byte, m.ranks*bytes)
	local := m.experts / m.ranks
	counts := m.args.ExpertCounts
	if counts == nil {
		counts = m.count()
	}
	for r := range m.ranks {
		row := m.head[r*bytes:][:bytes]
		for i, v := range [headerWords]uint32{uint32(m.tokens), uint32(m.sending[r]), uint32(m.topK)} {
			binary.LittleEndian.PutUint32(row[4*i:], v)
		}
		for l, n := range counts[r*local:][:local] {
			binary.LittleEndian.PutUint32(row[4*(headerWords+l):], uint32(n))
		}
	}
	return nil
}

// count counts the selections of each expert.
func (m *maker) count() []int32 {
	counts := make([]int32, m.experts)
	for _, id := range m.args.TopkIdx[:m.tokens*m.topK] {
		if id >= 0 {
			counts[id]++
		}
	}
	return counts
}

func (m *maker) readHeaders(in *incoming, bytes int) error {
	num, counts := make([]int, m.ranks), make([]int64, len(m.counts))
	for r := range m.ranks {
		first, n := in.from(r)
		if n != 1 {
			return impossible("%d rows of rank %d in a routing's first round, allowed 1", n, r)
		}
		row := in.RecvX[first*bytes:][:bytes]
		word := func(i int) uint32 { return binary.LittleEndian.Uint32(row[4*i:]) }
		h := header{word(0), word(1), word(2)}
		if h.rows > h.tokens || h.tokens > protocol.MaxRows {
			return impossible("rank %d sends %d rows of %d tokens, allowed %d tokens", r, h.rows, h.tokens, protocol.MaxRows)
		}
		m.got[r], num[r] = h, int(h.rows)
		m.longest = max(m.longest, int(h.tokens))
		for l := range counts {
			counts[l] += int64(word(headerWords + l))
		}
	}
	m.sourceFirst = sum(num)
	return m.setCounts(counts)
}

// setCounts keeps the sums of all ranks' selections of each local expert.
func (m *maker) setCounts(counts []int64) error {
	for l, n := range counts {
		if n > math.MaxInt32 {
			return tooMany("%d selections of expert %d in all ranks' num_tokens_per_expert, allowed %d", n, m.self*len(counts)+l, math.MaxInt32)
		}
		m.counts[l] = int32(n)
	}
	return nil
}

// impossible is what a call ends with when rows in this rank's memory are such as no rank sends. Another
// process of the host may have written them, so it costs no other rank its membership.
func impossible(format string, args ...any) error {
	return ep.FencedFor("what came to its memory cannot be: " + fmt.Sprintf(format, args...))
}

// tooMany ends a routing of which one rank gets too much: the others, which do not know, have to be
// told.
func tooMany(format string, args ...any) error {
	return fmt.Errorf("%w: this one has left: "+format+"; update the membership, then make a smaller routing", append([]any{ep.ErrLost}, args...)...)
}
