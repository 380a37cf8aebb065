package shmem

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
)

// BenchmarkWrite writes to another endpoint's memory, beside a plain copy
// between the same sizes of the same kind of memory.
func BenchmarkWrite(b *testing.B) {
	const most = 16 << 20
	for size := 64 << 10; size <= most; size *= 4 {
		b.Run(fmt.Sprintf("copy/%dKiB", size>>10), func(b *testing.B) {
			p := connected(b, most)
			defer p.close(0, 1)
			copy(p.memory[1].Bytes()[:size], p.memory[0].Bytes()[:size]) // makes the pages present
			b.SetBytes(int64(size))
			for b.Loop() {
				copy(p.memory[1].Bytes()[:size], p.memory[0].Bytes()[:size])
			}
		})
		b.Run(fmt.Sprintf("write/%dKiB", size>>10), func(b *testing.B) {
			p := connected(b, most)
			defer p.close(0, 1)
			q := []transport.SendRequest{{Op: transport.OpWrite, Local: p.piece(0, 0, size), Remote: p.region[1].Remote()}}
			p.roundTrip(q) // maps the memory
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				p.roundTrip(q)
			}
		})
	}
}

// BenchmarkSend is one small message to a peer that polls, in this process.
func BenchmarkSend(b *testing.B) {
	p := connected(b, 4096)
	defer p.close(0, 1)
	q := []transport.SendRequest{{Op: transport.OpSend, Local: p.piece(0, 0, 64)}}
	r := []transport.RecvRequest{{Local: p.piece(1, 0, 64)}}
	b.ReportAllocs()
	for b.Loop() {
		_, err := p.ep[1].PostRecv(r)
		require.NoError(b, err)
		p.roundTrip(q)
		n, err := p.tr[1].Poll(p.buf)
		if n != 1 || err != nil {
			b.Fatal(n, err)
		}
	}
}

func (p *pair) roundTrip(q []transport.SendRequest) {
	if _, err := p.ep[0].PostSend(q); err != nil {
		p.t.Fatal(err)
	}
	for {
		n, err := p.tr[0].Poll(p.buf)
		if err != nil || n > 0 && p.buf[0].Status != transport.StatusOK {
			p.t.Fatal(err, p.buf[0])
		}
		if n > 0 {
			return
		}
	}
}
