package multirank

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/moewire/moewire/core/ep"
)

// sent is one dispatch of a rank, with what all ranks sent: every rank can
// compute it from the seed.
type sent struct {
	op      uint64
	n       int
	tokens  []int
	topk    [][]int64
	weights []float32
	res     ep.Result
	counts  []int32
	layout  []int64
	active  []int32
}

const expertsPerRank = 4

// active is the mask for a call: all ones. The call clears the lost ranks.
func (e *env) active() []int32 {
	mask := make([]int32, e.ranks)
	for r := range mask {
		mask[r] = 1
	}
	return mask
}

func (e *env) experts() int { return expertsPerRank * e.ranks }

// route gives every rank's expert ids for one operation.
func (e *env) route(tokens []int, seed uint64) [][]int64 {
	r := rand.New(rand.NewPCG(seed, 9))
	topk := make([][]int64, e.ranks)
	for rank := range topk {
		for range tokens[rank] * soakTopK {
			topk[rank] = append(topk[rank], int64(r.IntN(e.experts()+1))-1)
		}
	}
	return topk
}

func (e *env) send(n int, tokens []int, seed uint64) (*sent, error) {
	s := &sent{n: n, tokens: tokens, topk: e.route(tokens, seed)}
	mine := tokens[e.rank]
	s.active = e.active()
	x := make([]byte, mine*soakHidden*2)
	for tok := range mine {
		putRow(x[tok*soakHidden*2:(tok+1)*soakHidden*2], value(e.rank, n, tok), tok)
	}
	s.weights = make([]float32, mine*soakTopK)
	for i := range s.weights {
		s.weights[i] = float32(i%4) / 4
	}
	s.counts, s.layout = make([]int32, expertsPerRank), make([]int64, expertsPerRank*e.ranks)
	_, err := e.buf.Dispatch(&ep.DispatchArgs{
		X: x, TopkIdx: s.topk[e.rank], NumTokens: mine, Hidden: soakHidden, TopK: soakTopK,
		MaxTokens: soakTokens, NumExperts: e.experts(), RecvCount: s.counts, LayoutRange: s.layout,
		ActiveRanks: s.active, Timeout: -1,
	}, &s.res, ep.PhaseDone, -1)
	if err != nil {
		return nil, err
	}
	s.op = s.res.Op
	return s, s.check(e)
}

// check looks at every row that arrived; of a rank that was lost there is none.
func (s *sent) check(e *env) error {
	for l := range expertsPerRank {
		id := int64(e.rank*expertsPerRank + l)
		for src := range e.ranks {
			begin, n := int(s.layout[l*e.ranks+src]>>32), int(s.layout[l*e.ranks+src]&(1<<32-1))
			want := wanted(s.topk[src], id)
			if s.active[src] == 0 {
				want = nil
			}
			if len(want) != n {
				return fmt.Errorf("expert %d has %d rows of rank %d, want %d", id, n, src, len(want))
			}
			for i, tok := range want {
				if err := s.checkRow(e, l, begin+i, src, tok); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (s *sent) checkRow(e *env, l, pos, src, tok int) error {
	at := (l*e.ranks*soakTokens + pos)
	row := s.res.RecvX[at*soakHidden*2 : (at+1)*soakHidden*2]
	want := make([]byte, len(row))
	putRow(want, value(src, s.n, tok), tok)
	if string(row) != string(want) || int(binary.LittleEndian.Uint32(s.res.SrcInfo[at*4:])) != tok {
		return fmt.Errorf("row %d of local expert %d is not token %d of rank %d", pos, l, tok, src)
	}
	// The stand-in expert passes the value on; a different one per operation.
	copy(s.res.CombineX[at*soakHidden*2:(at+1)*soakHidden*2], row)
	return nil
}

func wanted(topk []int64, id int64) (tokens []int) {
	for tok := 0; tok*soakTopK < len(topk); tok++ {
		for _, e := range topk[tok*soakTopK : (tok+1)*soakTopK] {
			if e == id {
				tokens = append(tokens, tok)
				break
			}
		}
	}
	return tokens
}

// finish combines and compares the first value of every token; the experts of
// a rank that was lost contribute nothing.
func (s *sent) finish(e *env) error {
	mine := s.tokens[e.rank]
	out, active := make([]byte, mine*soakHidden*2), e.active()
	_, err := e.buf.Combine(s.op, &ep.CombineArgs{
		X: s.res.CombineX, ZeroCopy: true, TopkIdx: s.topk[e.rank], TopkWeights: s.weights, Out: out,
		NumTokens: mine, TopK: soakTopK, ActiveRanks: active, Timeout: time.Minute,
	}, ep.PhaseDone, -1)
	if err != nil {
		return err
	}
	for tok := range mine {
		sum := 0 // in quarters of the row's value
		for k, id := range s.topk[e.rank][tok*soakTopK : (tok+1)*soakTopK] {
			if id >= 0 && active[id/expertsPerRank] != 0 {
				sum += (tok*soakTopK + k) % 4
			}
		}
		want := bf16(float32(sum) / 4 * float(value(e.rank, s.n, tok)))
		if got := binary.LittleEndian.Uint16(out[tok*soakHidden*2:]); got != want {
			return fmt.Errorf("token %d of operation %d combines to %#x, want %#x", tok, s.n, got, want)
		}
	}
	return nil
}

func float(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// bf16 rounds to nearest even; sums here are exact in float32 before it.
func bf16(f float32) uint16 {
	bits := math.Float32bits(f)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}
