package chaos

import (
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

// tappedRemote passes points around what is done with messages.
type tappedRemote struct {
	domain.Remote
	trap *trap
}

func (f tappedRemote) Reserve(rank int, n int64) ([]byte, error) {
	f.trap.hit(atReserve)
	return f.Remote.Reserve(rank, n)
}

func (f tappedRemote) Post(rank int, n int64) error {
	f.trap.hit(atPost)
	err := f.Remote.Post(rank, n)
	f.trap.hit(atPosted)
	return err
}

func (f tappedRemote) Next(rank int) []byte {
	m := f.Remote.Next(rank)
	if m != nil {
		f.trap.hit(atNext)
	}
	return m
}

func (f tappedRemote) Release(rank int) {
	f.trap.hit(atRelease)
	f.Remote.Release(rank)
}

func (f tappedRemote) Untaken() rankset.Set {
	f.trap.hit(atUntaken)
	return f.Remote.Untaken()
}

// Memory is for shadow slabs, and for rows that wait for their places.
func (f tappedRemote) Memory(n int64) (domain.Segment, error) {
	s, err := f.Remote.Memory(n)
	if err != nil {
		return nil, err
	}
	return &tappedSegment{Segment: s, trap: f.trap, name: slabPoint, shift: 1}, nil
}

// tappedWord passes points when others are to be taken out: on several hosts
// that begins a ballot, which goes on in the background.
type tappedWord struct {
	domain.MemberWord
	trap *trap
	self int
}

func (w tappedWord) CompareAndSwap(old, next uint64) bool {
	if bits.OnesCount64(old) <= bits.OnesCount64(next) || old>>membership.EpochShift != next>>membership.EpochShift || (old&^next)>>w.self&1 == 1 {
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
// the goroutine that does it.
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
