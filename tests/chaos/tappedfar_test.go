package chaos

import (
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// tappedFar passes points around what is done with messages.
type tappedFar struct {
	transport.Far
	trap *trap
}

func (f tappedFar) Reserve(rank int, n int64) ([]byte, error) {
	f.trap.hit(atReserve)
	return f.Far.Reserve(rank, n)
}

func (f tappedFar) Post(rank int, n int64) error {
	f.trap.hit(atPost)
	err := f.Far.Post(rank, n)
	f.trap.hit(atPosted)
	return err
}

func (f tappedFar) Next(rank int) []byte {
	m := f.Far.Next(rank)
	if m != nil {
		f.trap.hit(atNext)
	}
	return m
}

func (f tappedFar) Release(rank int) {
	f.trap.hit(atRelease)
	f.Far.Release(rank)
}

func (f tappedFar) Untaken() uint64 {
	f.trap.hit(atUntaken)
	return f.Far.Untaken()
}

// Memory is for mirrors of slabs, and for rows that wait for their places.
func (f tappedFar) Memory(n int64) (transport.Segment, error) {
	s, err := f.Far.Memory(n)
	if err != nil {
		return nil, err
	}
	return &tappedSegment{Segment: s, trap: f.trap, name: slabPoint, shift: 1}, nil
}

// tappedWord passes points when others are to be taken out: on several hosts
// that begins a ballot, which goes on in the background.
type tappedWord struct {
	transport.MemberWord
	trap *trap
	self int
}

func (w tappedWord) CompareAndSwap(old, next uint64) bool {
	if bits.OnesCount64(old) <= bits.OnesCount64(next) || old>>48 != next>>48 || (old&^next)>>w.self&1 == 1 {
		return w.MemberWord.CompareAndSwap(old, next)
	}
	w.trap.hit(atAsk)
	done := w.MemberWord.CompareAndSwap(old, next)
	w.trap.hit(atAsked)
	if w.trap.awaits(atBallot) {
		time.AfterFunc(rand.N(time.Millisecond), func() { w.trap.pass(atBallot) })
	}
	return done
}

// tappedCarrier passes points where work requests are posted and completed, in
// whoever's goroutine that happens.
type tappedCarrier struct {
	transport.Transport
	trap *trap
}

func (c tappedCarrier) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	e, err := c.Transport.NewEndpoint(spec)
	if err != nil {
		return nil, err
	}
	return tappedEndpoint{e, c.trap}, nil
}

func (c tappedCarrier) Poll(done []transport.Completion) (int, error) {
	n, err := c.Transport.Poll(done)
	if n > 0 {
		c.trap.pass(atCompleted)
	}
	return n, err
}

type tappedEndpoint struct {
	transport.Endpoint
	trap *trap
}

func (e tappedEndpoint) Connect(remote []byte, deadline time.Time) error {
	e.trap.pass(atLink)
	err := e.Endpoint.Connect(remote, deadline)
	e.trap.pass(atLinked)
	return err
}

func (e tappedEndpoint) PostSend(requests []transport.SendRequest) (int, error) {
	e.trap.pass(atSend)
	n, err := e.Endpoint.PostSend(requests)
	e.trap.pass(atSent)
	return n, err
}

func (e tappedEndpoint) PostRecv(requests []transport.RecvRequest) (int, error) {
	e.trap.pass(atRepost)
	return e.Endpoint.PostRecv(requests)
}
