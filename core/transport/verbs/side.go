package verbs

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/moewire/moewire/core/internal/dl"
	"github.com/moewire/moewire/core/internal/libibverbs"
	"github.com/moewire/moewire/core/transport"
)

// chainLength is how many work requests go to the device in one call.
const chainLength = 32

// side is one half of an endpoint: what it sends, or what it receives into.
type side struct {
	*slots
	endpoint *endpoint
	poster   *libibverbs.Poster

	// mu orders posts and guards the arrays, which C reads during a call only.
	// The call under it does not block: it rings the device's bell.
	mu sync.Mutex
	// unsent are slots of requests that the device never sees, because the
	// endpoint had failed: a ring that post writes under mu and Poll reads.
	unsent          []uint16
	written, polled atomic.Uint64

	// keeps means that requests are not posted as they come: each stays in the
	// place that its slot has in the arrays. Under mu.
	keeps bool

	wrs    uintptr // Transport.numWRs work requests, of C
	sges   uintptr // NumPieces for each
	pieces int
}

const (
	sendWRBytes = unsafe.Sizeof(libibverbs.SendWR{})
	recvWRBytes = unsafe.Sizeof(libibverbs.RecvWR{})
	sgeBytes    = unsafe.Sizeof(libibverbs.SGE{})
)

// numWRs is how many work requests a side has room for: a chain's; with DC one
// for each slot.
func (t *Transport) numWRs(spec transport.EndpointSpec) int {
	if t.dcPort == nil {
		return chainLength
	}
	return max(chainLength, spec.SendDepth, spec.RecvDepth)
}

// sideBytes is the memory that one side needs: a word, work requests, pieces.
func sideBytes(numWRs, numPieces int) int64 {
	return int64(8 + uintptr(numWRs)*(sendWRBytes+uintptr(numPieces)*sgeBytes))
}

func newSide(e *endpoint, recv bool, spec transport.EndpointSpec, memory []byte) *side {
	numPieces, depth := e.owner.limits.NumPieces, spec.SendDepth
	if recv {
		depth = spec.RecvDepth
	}
	base := uintptr(unsafe.Pointer(unsafe.SliceData(memory)))
	s := &side{
		slots:    newSlots(depth, numPieces, uint32(e.id)<<12&(1<<keyBits-1)),
		endpoint: e,
		unsent:   make([]uint16, depth),
		wrs:      base + 8,
		sges:     base + 8 + uintptr(e.owner.numWRs(spec))*sendWRBytes,
		pieces:   numPieces,
	}
	if recv {
		s.poster = e.owner.ctx.RecvPoster(e.qp, base)
	} else {
		s.poster = e.owner.ctx.SendPoster(e.qp, base)
	}
	return s
}

func (s *side) sendWR(i int) *libibverbs.SendWR {
	return dl.At[libibverbs.SendWR](s.wrs + uintptr(i)*sendWRBytes)
}

func (s *side) recvWR(i int) *libibverbs.RecvWR {
	return dl.At[libibverbs.RecvWR](s.wrs + uintptr(i)*recvWRBytes)
}

// next is the link of the i-th work request, which lies at one offset in both kinds.
func (s *side) next(i int, wrBytes uintptr) *uintptr {
	return dl.At[uintptr](s.wrs + uintptr(i)*wrBytes + nextOffset)
}

const nextOffset = unsafe.Offsetof(libibverbs.SendWR{}.Next)

var _ [0]struct{} = [nextOffset - unsafe.Offsetof(libibverbs.RecvWR{}.Next)]struct{}{}

// place is where the i-th request of a chain lies, which takes a slot.
func (s *side) place(i, slot int) int {
	if s.keeps {
		return slot
	}
	return i
}

// chain is how many requests are handed over at once, of n.
func (s *side) chain(n int) int {
	if s.keeps {
		return min(n, 1, s.room())
	}
	return min(n, chainLength, s.room())
}

// Errors of posts are values or made once: a full queue costs nothing.
var (
	errFull   = fmt.Errorf("post: all of the depth is outstanding: %w", transport.ErrWouldBlock)
	errState  = fmt.Errorf("post: %w", transport.ErrState)
	errRegion = errors.New("post: Local names a region of another transport, or a closed one")
)

// fill translates the pieces of the i-th request of a chain, pins their
// regions in the slot and returns the number of parts and of bytes.
func (s *side) fill(i int, pieces []transport.Piece, into *slot) (n int32, total int64, err error) {
	for _, p := range pieces {
		r := s.endpoint.owner.own(p.Region)
		if r == nil || !r.pin() {
			return 0, 0, errRegion
		}
		if len(into.regions) == cap(into.regions) {
			r.unpin()
			return 0, 0, fmt.Errorf("post: %d pieces, at most %d", len(pieces), s.pieces)
		}
		into.regions = append(into.regions, r)
		if p.Off < 0 || p.Bytes < 0 || p.Bytes > r.sizeBytes-p.Off {
			return 0, 0, fmt.Errorf("post: Local: %d bytes at %d of a region of %d", p.Bytes, p.Off, r.sizeBytes)
		}
		total += int64(p.Bytes)
		if n, err = s.parts(i, n, r, uint64(p.Off), uint64(p.Bytes)); err != nil {
			return 0, 0, err
		}
	}
	return n, total, nil
}

// parts adds one piece, in as many parts as it touches registrations. An empty
// one has none.
func (s *side) parts(i int, n int32, r *region, off, length uint64) (int32, error) {
	for length > 0 {
		if int(n) == s.pieces {
			return 0, fmt.Errorf("post: the pieces lie in more than %d registrations", s.pieces)
		}
		chunk := off / r.chunkBytes
		m := min(length, (chunk+1)*r.chunkBytes-off)
		*dl.At[libibverbs.SGE](s.sge(i) + uintptr(n)*sgeBytes) = libibverbs.SGE{
			Addr: r.addr + off, Length: uint32(m), LKey: r.lkeys[chunk],
		}
		n, off, length = n+1, off+m, length-m
	}
	return n, nil
}

// sge is the address of the i-th request's parts.
func (s *side) sge(i int) uintptr { return s.sges + uintptr(i*s.pieces)*sgeBytes }

// flushUnsent takes the first n requests of the chain and leaves them to Poll,
// as flushed.
func (s *side) flushUnsent(n int) {
	for i := range n {
		index, _ := s.slots.at(i)
		s.unsent[(s.written.Load()+uint64(i))%uint64(len(s.unsent))] = uint16(index)
	}
	s.take(n)
	s.written.Add(uint64(n))
	t := s.endpoint.owner
	t.poll.unsent.Add(int64(n))
	t.Wake()
}

// flushTaken leaves all that the device still had to Poll, as flushed. The
// caller holds poll.mu, so no completion of it is being looked at; later ones
// are strays.
func (s *side) flushTaken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := make([]bool, len(s.all)) // free, or waiting in unsent already
	for n := s.taken.Load(); n < s.freed.Load()+uint64(len(s.ring)); n++ {
		mine[s.ring[n%uint64(len(s.ring))]] = true
	}
	for n := s.polled.Load(); n < s.written.Load(); n++ {
		mine[s.unsent[n%uint64(len(s.unsent))]] = true
	}
	added := 0
	for i := range s.all {
		if !mine[i] {
			s.all[i].key = nextKey(s.all[i].key)
			s.unsent[(s.written.Load()+uint64(added))%uint64(len(s.unsent))] = uint16(i)
			added++
		}
	}
	s.written.Add(uint64(added))
	s.endpoint.owner.poll.unsent.Add(int64(added))
	s.endpoint.owner.Wake()
}

// nextUnsent gives one of them as a completion, if there is one.
func (s *side) nextUnsent(done *transport.Completion) bool {
	n := s.polled.Load()
	if n == s.written.Load() {
		return false
	}
	index := s.unsent[n%uint64(len(s.unsent))]
	slot := &s.all[index]
	*done = transport.Completion{
		ID: slot.id, Endpoint: s.endpoint.id, Op: slot.op, Status: transport.StatusFlushed,
	}
	s.polled.Store(n + 1)
	s.free(int(index))
	return true
}

// handOver posts the first n requests of the chain, which are filled in, and
// returns how many the device took.
func (s *side) handOver(n int, wrBytes uintptr) (int, error) {
	if n == 0 {
		return 0, nil
	}
	if s.endpoint.State() == transport.StateError {
		s.flushUnsent(n)
		return n, nil
	}
	if s.keeps {
		s.keep(n)
		return n, nil
	}
	s.take(n) // before the call: completions may be polled during it
	bad, errno := s.poster.Post(s.wrs)
	if errno == 0 {
		return n, nil
	}
	accepted := 0
	if bad >= s.wrs {
		accepted = min(n, int((bad-s.wrs)/wrBytes))
	}
	s.untake(n - accepted)
	if errno == syscall.ENOMEM || errno == syscall.EAGAIN {
		return accepted, errFull
	}
	return accepted, fmt.Errorf("post on %s: %w", s.endpoint.owner.device, errno)
}

// bigEndian is an immediate as the device wants it.
func bigEndian(v uint32) uint32 { return bits.ReverseBytes32(v) }
