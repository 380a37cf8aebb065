package verbs

import (
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
)

// fakeDCIFunctions makes what builds requests of an initiator, and returns what
// puts it into a queue pair.
func fakeDCIFunctions() func(qp uintptr) {
	build := func(qp uintptr, s fakeSend) uintptr { current.build(qp, s); return 0 }
	table := dl.Fake(map[string]any{
		"start":    func(qp uintptr) uintptr { current.start(qp); return 0 },
		"complete": func(qp uintptr) uintptr { return current.complete(qp) },
		"send": func(qp uintptr) uintptr {
			return build(qp, fakeSend{SendWR: libibverbs.SendWR{Opcode: libibverbs.WRSend}})
		},
		"read": func(qp, key, addr uintptr) uintptr {
			return build(qp, fakeSend{SendWR: libibverbs.SendWR{Opcode: libibverbs.WRRDMARead, RKey: uint32(key), RemoteAddr: uint64(addr)}})
		},
		"write": func(qp, key, addr uintptr) uintptr {
			return build(qp, fakeSend{SendWR: libibverbs.SendWR{Opcode: libibverbs.WRRDMAWrite, RKey: uint32(key), RemoteAddr: uint64(addr)}})
		},
		"writeImm": func(qp, key, addr, imm uintptr) uintptr {
			return build(qp, fakeSend{SendWR: libibverbs.SendWR{
				Opcode: libibverbs.WRRDMAWriteWithImm, RKey: uint32(key), RemoteAddr: uint64(addr), ImmData: uint32(imm),
			}})
		},
		"pieces": func(qp, n, at uintptr) uintptr {
			return current.tell(qp, func(s *fakeSend) { s.sges = pieces(at, int(n)) })
		},
		"inline": func(qp, at, n uintptr) uintptr {
			return current.tell(qp, func(s *fakeSend) {
				s.inline = append([]byte{}, unsafe.Slice(dl.At[byte](at), n)...)
			})
		},
		"target": func(own, ah, num, key uintptr) uintptr {
			return current.tell(own-fakeOwnPart, func(s *fakeSend) {
				s.to = libibverbs.DCTarget{AH: libibverbs.AH(ah), Number: uint32(num), Key: uint64(key)}
			})
		},
	})
	at := func(name string) uintptr {
		fn, err := table.Lookup(name)
		if err != nil {
			panic(err)
		}
		return uintptr(fn)
	}
	head := libibverbs.QPExHead{
		Start: at("start"), Complete: at("complete"), Send: at("send"), RDMARead: at("read"), RDMAWrite: at("write"),
		RDMAWriteImm: at("writeImm"), SetSGEList: at("pieces"), SetInlineData: at("inline"),
	}
	own := libibverbs.Mlx5QPExHead{SetDCAddr: at("target")}
	return func(qp uintptr) {
		*dl.At[libibverbs.QPExHead](qp) = head
		*dl.At[libibverbs.Mlx5QPExHead](qp + fakeOwnPart) = own
	}
}

func (f *fakeLib) start(qp uintptr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[qp]
	assert.Equal(f.t, fakeInitiator, q.kind)
	assert.False(f.t, q.building, "two batches at once")
	q.building, q.batch = true, nil
}

func (f *fakeLib) build(qp uintptr, s fakeSend) {
	f.mu.Lock()
	defer f.mu.Unlock()
	q, head := f.queues[qp], dl.At[libibverbs.QPExHead](qp)
	assert.True(f.t, q.building)
	s.WRID, s.SendFlags = head.WRID, head.WRFlags
	q.batch = append(q.batch, s)
}

// tell adds a part to the request that is being built.
func (f *fakeLib) tell(qp uintptr, part func(s *fakeSend)) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[qp]
	require.NotEmpty(f.t, q.batch)
	s := &q.batch[len(q.batch)-1]
	part(s)
	s.parts++
	return 0
}

// complete takes a batch, or with an error nothing.
func (f *fakeLib) complete(qp uintptr) uintptr {
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.queues[qp]
	q.building = false
	if errno := f.failure("wr_complete"); errno != 0 {
		return uintptr(errno)
	}
	for _, s := range q.batch {
		assert.Equal(f.t, 2, s.parts, "data and target of each")
		assert.Equal(f.t, "ah", f.alive[uintptr(s.to.AH)])
		assert.EqualValues(f.t, libibverbs.SendSignaled, s.SendFlags)
		f.sent = append(f.sent, s)
		if !f.moves {
			f.pending[qp] = append(f.pending[qp], fakeRequest{s.WRID, s.sges})
		}
	}
	if f.moves {
		q.sends = append(q.sends, q.batch...)
		f.run(q)
	}
	return 0
}
