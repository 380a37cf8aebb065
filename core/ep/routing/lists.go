package routing

import (
	"encoding/binary"
	"fmt"
	"slices"

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
		stream: m.args.Stream,
		send: func(p piece, a *ep.DispatchArgs) error {
			first, n := m.g.routeTokens(m.Routing, p, a)
			a.X = m.listed[first*bytes:][:n*bytes]
			return nil
		},
		take: func(p piece, in *incoming) error { return m.readLists(p, in, bytes) },
	}
}

// agree compares what all ranks must have given alike. Every rank finds the same difference. It makes
// no room for rows: what a rank says that it sends takes no memory before it comes.
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
	m.come = make([]come, m.ranks)
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
		c := &m.come[r]
		c.source, c.ids = slices.Grow(c.source, n), slices.Grow(c.ids, n*m.topK)
		for i := range n {
			if err := m.readRow(p, r, in.RecvX[(first+i)*bytes:][:bytes]); err != nil {
				return err
			}
		}
		if err := m.checkNum(p, r); err != nil {
			return err
		}
	}
	if int(p.to) >= m.longest {
		m.join()
	}
	return nil
}

// checkNum: as many rows as a rank said have come, or can still come: one of each later token.
func (m *maker) checkNum(p piece, rank int) error {
	said, n, later := int(m.got[rank].rows), len(m.come[rank].source), max(int(m.got[rank].tokens)-int(p.to), 0)
	if n > said || n+later < said {
		return impossible("%d rows of rank %d, which said %d", n, rank, said)
	}
	return nil
}

// join puts the rows of all ranks together.
func (m *maker) join() {
	total := m.sourceFirst[m.ranks]
	m.source, m.Routing.ids = make([]int32, 0, total), make([]int32, 0, total*m.topK)
	for r, c := range m.come {
		m.source, m.Routing.ids = append(m.source, c.source...), append(m.Routing.ids, c.ids...)
		m.come[r] = come{}
	}
}

// readRow takes the next row of a rank. Tokens ascend, so each row comes once.
func (m *maker) readRow(p piece, rank int, row []byte) error {
	word := func(at int) int32 { return int32(binary.LittleEndian.Uint32(row[4*at:])) }
	c, token := &m.come[rank], word(0)
	i := len(c.source)
	if token < p.from || token >= p.to || token >= int32(m.got[rank].tokens) || (i > 0 && token <= c.source[i-1]) {
		return impossible("row %d of rank %d is of token %d of %d", i, rank, token, m.got[rank].tokens)
	}
	c.source = append(c.source, token)
	local := int32(m.experts / m.ranks)
	base := int32(m.self) * local
	for k := range m.topK {
		id := word(1 + k)
		if id < -1 || id >= int32(m.experts) {
			return impossible("row %d of rank %d has expert %d, allowed -1 to %d", i, rank, id, m.experts-1)
		}
		if id -= base; id < 0 || id >= local {
			id = -1
		} else {
			m.here[id]++
		}
		c.ids = append(c.ids, id)
	}
	return nil
}
