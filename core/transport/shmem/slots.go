package shmem

import "github.com/moewire/moewire/core/transport"

// request is one work request, in a slot of its endpoint from its posting
// until its completion has been polled.
type request struct {
	id        uint64
	op        transport.Opcode
	imm       uint32
	numBytes  int
	moved     int // bytes
	remote    transport.RemoteRegion
	remoteOff uint64
	pieces    [MaxPieces]transport.Piece
	numPieces int
	inline    []byte // of MaxInlineBytes
	isInline  bool
}

// slots holds the requests of one side of an endpoint.
type slots struct {
	all  []request
	free []int
}

func newSlots(depth int, inline bool) slots {
	s := slots{all: make([]request, depth), free: make([]int, depth)}
	for i := range s.all {
		s.free[i] = i
		if inline {
			s.all[i].inline = make([]byte, MaxInlineBytes)
		}
	}
	return s
}

func (s *slots) numUsed() int { return len(s.all) - len(s.free) }

// take returns a slot, which is there.
func (s *slots) take() int {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return i
}

// release ends a request: its memory is the caller's again.
func (s *slots) release(i int) {
	r := &s.all[i]
	for k := range r.pieces[:r.numPieces] {
		r.pieces[k].Region.(*Region).unuse()
		r.pieces[k].Region = nil
	}
	s.free = append(s.free, i)
}

// hold notes the pieces of a request. Their regions are in use already.
func (r *request) hold(pieces []transport.Piece) { r.numPieces = copy(r.pieces[:], pieces) }

// local lists the memory of a request.
func (r *request) local(list *spans) {
	if r.isInline {
		list.one(r.inline[:r.numBytes])
		return
	}
	list.num = 0
	for i := range r.pieces[:r.numPieces] {
		p := &r.pieces[i]
		list.add(p.Region.(*Region).mem[p.Off : p.Off+p.Bytes])
	}
}

// copyInline takes the bytes of an inline request.
func (r *request) copyInline() {
	at := 0
	for i := range r.pieces[:r.numPieces] {
		p := &r.pieces[i]
		at += copy(r.inline[at:], p.Region.(*Region).mem[p.Off:p.Off+p.Bytes])
	}
}

// ring is a queue of at most len(items) things.
type ring[T any] struct {
	items []T
	first int
	num   int
}

func newRing[T any](depth int) ring[T] { return ring[T]{items: make([]T, depth)} }

// push adds to the end; there is room.
func (q *ring[T]) push(v T) {
	q.items[(q.first+q.num)%len(q.items)] = v
	q.num++
}

// front is the oldest; there is one.
func (q *ring[T]) front() T { return q.items[q.first] }

func (q *ring[T]) pop() T {
	v := q.items[q.first]
	q.first = (q.first + 1) % len(q.items)
	q.num--
	return v
}

// finished is a request that has ended, and was not polled.
type finished struct {
	completion transport.Completion
	slot       int
	recv       bool
}
