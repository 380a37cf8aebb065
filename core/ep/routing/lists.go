package routing

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

// lists is the exchange in which the ranks send the numbers of their tokens, with expert ids.
func (m *maker) lists() *exchange {
	bytes := padded(4 * (1 + m.topK))
	return &exchange{
		g: m.g, use: protocol.ForRouting, hidden: bytes / 2, experts: m.ranks, timeout: m.args.Timeout, epoch: m.epoch,
		prepare: func(most int) (int, error) {
			if err := m.agree(); err != nil {
				return 0, err
			}
			m.writeLists(bytes)
			return m.rounds(most), nil
		},
		send: func(p piece, a *ep.DispatchArgs) { m.g.sendTokens(m.Routing, p, m.listed, bytes, a) },
		take: func(p piece, in *incoming) error { return m.readLists(p, in, bytes) },
	}
}

// agree compares what all ranks must have given alike, and makes room for the rows. Every rank finds
// the same difference.
func (m *maker) agree() error {
	total, most := 0, int(limits.NumTokens.Most)
	if m.topK > 0 {
		most = min(most, int(limits.Selections.Most)/m.topK)
	}
	for r, h := range m.got {
		if int(h.topK) != m.topK {
			return fmt.Errorf("%w: num_topk is %d on rank %d and %d on rank %d in the same routing", ep.ErrMismatch, m.topK, m.self, h.topK, r)
		}
		total += int(h.rows)
	}
	if total > most {
		return tooMany("%d rows of %d expert ids come to rank %d, allowed %d", total, m.topK, m.self, most)
	}
	m.source, m.Routing.ids = make([]int32, total), make([]int32, total*m.topK)
	m.filled = make([]int, m.ranks)
	return nil
}

// writeLists makes the rows of all tokens.
func (m *maker) writeLists(bytes int) {
	m.listed = make([]byte, m.tokens*bytes)
	for t := range m.tokens {
		row := m.listed[t*bytes:][:bytes]
		binary.LittleEndian.PutUint32(row, uint32(t))
		for k, id := range m.args.TopkIdx[t*m.topK:][:m.topK] {
			binary.LittleEndian.PutUint32(row[4*(1+k):], uint32(int32(id)))
		}
	}
}

// readLists checks what other ranks have written before it is used.
func (m *maker) readLists(p piece, in *incoming, bytes int) error {
	for r := range m.ranks {
		first, n := in.from(r)
		at := m.filled[r]
		if begin, end := m.RowsFrom(r); begin+at+n > end {
			return fmt.Errorf("%w: more than %d rows come from rank %d", ep.ErrMismatch, end-begin, r)
		}
		for i := range n {
			if err := m.readRow(p, r, at+i, in.RecvX[(first+i)*bytes:][:bytes]); err != nil {
				return err
			}
		}
		m.filled[r] += n
	}
	if int(p.to) < m.longest {
		return nil // rounds are to come
	}
	return m.complete()
}

// complete checks that every rank has sent as many rows as it said.
func (m *maker) complete() error {
	for r, n := range m.filled {
		if begin, end := m.RowsFrom(r); n != end-begin {
			return fmt.Errorf("%w: %d rows come from rank %d, which said %d", ep.ErrMismatch, n, r, end-begin)
		}
	}
	return nil
}

// readRow takes row i of a rank. Tokens ascend, so each row comes once.
func (m *maker) readRow(p piece, rank, i int, row []byte) error {
	word := func(at int) int32 { return int32(binary.LittleEndian.Uint32(row[4*at:])) }
	begin, _ := m.RowsFrom(rank)
	at, token := begin+i, word(0)
	if token < p.from || token >= p.to || token >= int32(m.got[rank].tokens) || (i > 0 && token <= m.source[at-1]) {
		return fmt.Errorf("%w: row %d of rank %d is of token %d of %d", ep.ErrMismatch, i, rank, token, m.got[rank].tokens)
	}
	m.source[at] = token
	local := int32(m.experts / m.ranks)
	base := int32(m.self) * local
	for k := range m.topK {
		id := word(1 + k)
		if id < -1 || id >= int32(m.experts) {
			return fmt.Errorf("%w: row %d of rank %d has expert %d, allowed -1 to %d", ep.ErrMismatch, i, rank, id, m.experts-1)
		}
		if id -= base; id < 0 || id >= local {
			id = -1
		} else {
			m.here[id]++
		}
		m.Routing.ids[at*m.topK+k] = id
	}
	return nil
}
