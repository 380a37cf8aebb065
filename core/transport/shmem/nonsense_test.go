package shmem

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/transport"
)

// TestNonsense: what a peer shares and cannot be is found out, and ends the
// endpoint, whatever else would have happened.
func TestNonsense(t *testing.T) {
	for _, c := range []struct {
		name string
		op   transport.Opcode
		do   func(p *pair)
	}{
		{"a region behind its memory", transport.OpWrite, func(p *pair) { p.row(regionOff, 0, 1<<40) }},
		{"a region across the end", transport.OpRead, func(p *pair) { p.row(regionSizeOff, 0, 4097) }},
		{"a region that goes round", transport.OpWrite, func(p *pair) { p.row(regionOff, 4096, 1<<63) }},
		{"a receive behind its memory", transport.OpSend, func(p *pair) { p.receive(16, 4096) }},
		{"a receive that goes round", transport.OpSend, func(p *pair) { p.receive(16, ^uint64(0)-1) }},
		{"a receive across the end", transport.OpSend, func(p *pair) { p.receive(24, 4097) }},
		{"a receive without end", transport.OpSend, func(p *pair) { p.receive(24, 1<<63) }},
		{"too many pieces", transport.OpSend, func(p *pair) { p.receive(0, MaxPieces+1) }},
		{"too many receives", transport.OpSend, func(p *pair) { p.ep[1].posted.Store(9) }},
		{"receives taken back", transport.OpSend, func(p *pair) { p.ep[1].posted.Store(^uint64(0)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := connected(t, 4096)
			p.recv(1, 1, p.piece(1, 0, 100))
			c.do(p)
			at := p.region[1].Remote()
			if c.op != transport.OpSend {
				at.Addr = p.word(regionOff).Load()
			}
			p.send(0, transport.SendRequest{ID: 2, Op: c.op, Local: p.piece(0, 0, 100), Remote: at})
			done := p.await(2, 0)
			require.Equal(t, transport.StatusRemote, done.Status)
			require.Equal(t, uint32(VendorNonsense), done.Vendor)
			p.close(0, 1)
		})
	}
}

// TestNonsenseEnds: a peer cannot end what was not posted, nor so.
func TestNonsenseEnds(t *testing.T) {
	for name, do := range map[string]func(e *Endpoint){
		"two of one":       func(e *Endpoint) { e.word(laneEndsOff).Store(uint64(transport.OpRecv)); e.end.Store(2) },
		"less than none":   func(e *Endpoint) { e.end.Store(^uint64(0)) },
		"a wrong one":      func(e *Endpoint) { e.word(laneEndsOff).Store(uint64(transport.OpWrite)); e.end.Store(1) },
		"more than it has": func(e *Endpoint) { e.word(laneEndsOff).Store(1 << 16); e.end.Store(1) },
	} {
		t.Run(name, func(t *testing.T) {
			p := connected(t, 4096)
			p.recv(0, 1, p.piece(0, 0, 100))
			do(p.ep[1])
			p.ep[1].ringPeer()
			require.Equal(t, transport.StatusFlushed, p.await(1, 0).Status)
			var events [1]transport.Event
			require.Equal(t, 1, p.tr[0].PollEvents(events[:]))
			require.Contains(t, events[0].Detail, "ended receives")
			p.close(0, 1)
		})
	}
}

// word is one of the row of the second's region.
func (p *pair) word(off int64) interface {
	Load() uint64
	Store(uint64)
} {
	return p.tr[1].table.word(tableRegionsOff + regionBytes*int64(p.region[1].Remote().Key%MaxRegions) + off)
}

// row lies about the second's region: its place, or another of its words.
func (p *pair) row(off int64, begin, value uint64) {
	p.word(regionOff).Store(begin)
	p.word(regionSizeOff).Store(4096)
	p.word(off).Store(value)
}

// receive lies about the second's receive.
func (p *pair) receive(off int64, value uint64) {
	sys.Word(p.ep[1].lane.Bytes(), laneReceivesOff+off).Store(value)
}
