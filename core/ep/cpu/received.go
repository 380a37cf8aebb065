package cpu

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// takeCounts reads counters and layout of our slab into the caller's memory, once. Only
// then it checks them: rows of two sources do not overlap, and all lie among those that
// were reserved.
func (b *Buffer) takeCounts(s *slot) error {
	a := &s.dispatch.args
	s.received = resize(s.received, int(s.slab.LocalExperts))
	for l := range s.received {
		reserved := s.own.seg.Word(layout.Counter(l)).Load()
		if b.misses(s) { // it may have reserved rows of another shape
			reserved = min(reserved, uint64(s.slab.RowsPerExpert))
		}
		if !protocol.Fits(reserved, 0, uint64(s.slab.RowsPerExpert)) {
			b.violates(violation{b.self, fmt.Sprintf("counter[%d] in slot %d", l, s.index), reserved, fmt.Sprintf("0 to %d", s.slab.RowsPerExpert)})
			return b.surrender()
		}
		s.received[l] = int32(reserved)
		if !b.takeLayout(s, l, a.LayoutRange[l*b.ranks:(l+1)*b.ranks]) {
			return b.surrender()
		}
	}
	copy(a.RecvCount, s.received)
	if s.rows = int64(a.RecvCount[0]); a.Flat && !a.NoRouting {
		b.clearHoles(s)
		if !b.checkIDs(s) {
			return b.surrender()
		}
	}
	if b.exchanges(s) {
		b.checkRowOrder(s)
	}
	return b.surrender()
}

// misses reports whether a source that the operation was planned with has not arrived.
func (b *Buffer) misses(s *slot) bool { return !s.planned.Minus(s.counted).Minus(s.spoiled).Empty() }

// takeLayout copies where the rows of each counted source lie.
func (b *Buffer) takeLayout(s *slot, l int, to []int64) bool {
	clear(to)
	ranges, sum, holes := b.scratch.ranges[:0], uint64(0), s.counted != s.a
	for t := range s.counted.All() {
		v := s.own.seg.Word(s.slab.Layout(int64(l), int64(t))).Load()
		if v&(1<<32-1) == 0 {
			holes = holes || v == protocol.Withdrawn
			continue
		}
		to[t] = int64(v)
		sum += v & (1<<32 - 1)
		ranges = append(ranges, v)
		for i := len(ranges) - 1; i > 0 && ranges[i-1] > v; i-- {
			ranges[i-1], ranges[i] = v, ranges[i-1]
		}
	}
	b.scratch.ranges = ranges
	b.count.rowsReceived += sum
	if reserved := uint64(s.received[l]); sum != reserved && !holes {
		b.violates(violation{
			b.self, fmt.Sprintf("layout[%d] or counter[%d] in slot %d", l, l, s.index), reserved,
			fmt.Sprintf("%d, for all rows have come", sum),
		})
		return false
	}
	end := uint64(0)
	for _, v := range ranges { // in order of their first rows
		begin, n := v>>32, v&(1<<32-1)
		if begin < end || !protocol.Fits(begin, n, uint64(s.received[l])) {
			b.violates(violation{
				b.self, fmt.Sprintf("layout[%d] or counter[%d] in slot %d", l, l, s.index), v,
				fmt.Sprintf("rows from %d on, within %d", end, s.received[l]),
			})
			return false
		}
		end = begin + n
	}
	return true
}

// checkIDs checks that every id of flat rows is -1 or a local expert. So a caller that
// runs experts by these ids finds them all.
func (b *Buffer) checkIDs(s *slot) bool {
	ids := s.dispatch.res.Columns[layout.ColumnTopkIdx][:s.rows*s.slab.Columns[layout.ColumnTopkIdx]]
	local := s.params.experts / uint64(b.ranks)
	for at := 0; at < len(ids); at += 8 {
		if id := binary.LittleEndian.Uint64(ids[at:]); id+1 > local {
			b.violates(violation{b.self, fmt.Sprintf("topk_idx of flat rows, entry %d", at/8), id, fmt.Sprintf("-1 to %d", local-1)})
			return false
		}
	}
	return true
}
