package link

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// faulty is a carrier that fails where it is told to.
type faulty struct {
	transport.Transport
	poll     error
	receives int // so many can be posted to an endpoint; 0: all
}

func (f *faulty) Poll(done []transport.Completion) (int, error) {
	if f.poll != nil {
		return 0, f.poll
	}
	return f.Transport.Poll(done)
}

func (f *faulty) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	ep, err := f.Transport.NewEndpoint(spec)
	return &faultyEndpoint{Endpoint: ep, left: f.receives}, err
}

type faultyEndpoint struct {
	transport.Endpoint
	left int
}

var errFaulty = errors.New("out of order")

func (e *faultyEndpoint) PostRecv(r []transport.RecvRequest) (int, error) {
	if e.left--; e.left == 0 {
		return 0, errFaulty
	}
	return e.Endpoint.PostRecv(r)
}

// TestDeadPoller: no goroutine polls for a link that is made after polling has failed, so
// it is not made.
func TestDeadPoller(t *testing.T) {
	p := NewPoller(&faulty{Transport: fake.New(fake.Config{}).Transport(), poll: errFaulty}, func() {})
	<-p.done
	_, err := NewLink(p, 1, 0, Config{RingBytes: 1 << 14, NumMessages: 8}, heap)
	require.ErrorIs(t, err, errFaulty)
	require.NoError(t, p.Close())
}

// TestHalfMade: of a link that cannot be made nothing is left, also when the
// carrier has requests of it already.
func TestHalfMade(t *testing.T) {
	p := NewPoller(&faulty{Transport: fake.New(fake.Config{}).Transport(), receives: 5}, func() {})
	_, err := NewLink(p, 1, 0, Config{RingBytes: 1 << 14, NumMessages: 8}, heap)
	require.ErrorIs(t, err, errFaulty)
	require.Empty(t, *p.links.Load())
	require.Empty(t, p.all)
	require.NoError(t, p.Close())
}
