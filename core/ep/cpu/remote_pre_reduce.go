package cpu

import (
	"encoding/binary"
	"math"

	"github.com/moewire/moewire/core/device"
)

// keepTerms notes what the sums of a piece's rows will be made of: the rows of
// their experts here, in order of k. The piece was checked and has its places.
func (in *inRows) keepTerms(msg []byte, x *sections, rows int) {
	lens, entries, weights := part(msg, x.lens), part(msg, x.entries), part(msg, x.weights)
	for i := range rows {
		n := int(lens[i])
		for k := range int(in.params.topK) {
			if k >= n {
				in.terms, in.weights = append(in.terms, device.ReduceJob{Source: -1}), append(in.weights, 0)
				continue
			}
			e := binary.LittleEndian.Uint16(entries[2*k:])
			if !isBefore(entries[:2*k], e) {
				in.cursor[e]++ // one row, however often it is selected
			}
			row := int64(e)*in.lay.RowsPerExpert + int64(in.begin[e]+in.cursor[e]-1)
			in.terms = append(in.terms, device.ReduceJob{Row: row})
			in.weights = append(in.weights, math.Float32frombits(binary.LittleEndian.Uint32(weights[4*k:])))
		}
		entries, weights = entries[2*n:], weights[4*n:]
	}
}

func isBefore(entries []byte, expert uint16) bool {
	for at := 0; at < len(entries); at += 2 {
		if binary.LittleEndian.Uint16(entries[at:]) == expert {
			return true
		}
	}
	return false
}

// addUp makes n sums for remote source r, from row number `first` on, in a message.
func (b *Buffer) addUp(msg []byte, s *slot, r int, first, n int64) {
	in, lay := &s.remote[r].in, &s.shown
	k := int64(in.params.topK)
	b.scratch.own[0] = bytesOf(s.own.seg, lay.Y())
	b.scratch.reduce = device.ReduceBatch{
		Out: msg[:n*lay.OutputBytes()], Hidden: int(lay.Hidden), TopK: int(k), Sources: b.scratch.own[:],
		RowType: lay.OutputType, OutType: lay.OutputType,
		Jobs: in.terms[first*k : (first+n)*k], Weights: in.weights[first*k : (first+n)*k],
	}
	b.kern.Reduce(&b.scratch.reduce)
	b.scratch.reduce.Out, b.scratch.own[0] = nil, nil
}

// outputCounts are the rows of outputs that remote owner r has for us: one number
// per local expert or, pre-reduced, the tokens that went there.
func (b *Buffer) outputCounts(s *slot, r int) []int32 {
	if s.params.preReduce {
		b.remote.one[0] = s.scatter.num[r]
		return b.remote.one[:]
	}
	l := int(s.slab.LocalExperts)
	return s.plan.counts[r*l : (r+1)*l]
}

func sumOf(counts []int32) (n int64) {
	for _, c := range counts {
		n += int64(c)
	}
	return n
}
