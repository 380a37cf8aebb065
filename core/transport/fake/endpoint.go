package fake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/moewire/moewire/core/transport"
)

// Endpoint is one queue pair.
type Endpoint struct {
	transport *Transport
	id        transport.EndpointID
	nonce     uint64

	// Under the network's lock.
	state      transport.EndpointState
	connecting bool
	wasReady   bool
	reported   bool
	closed     bool
	closing    bool
	peer       address
	sends      slots
	recvs      slots
	waiting    queue[*request] // receives in the order of posting
	counts     Counts
}

// address is what Local holds.
type address struct {
	transport uint32
	endpoint  transport.EndpointID
	nonce     uint64
}

const addressBytes = 4 + 8 + 8 + 4

func (a address) encode() []byte {
	b := binary.LittleEndian.AppendUint32(nil, a.transport)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.endpoint))
	b = binary.LittleEndian.AppendUint64(b, a.nonce)
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func decodeAddress(b []byte) (address, error) {
	if len(b) != addressBytes {
		return address{}, fmt.Errorf("address has %d bytes, not %d", len(b), addressBytes)
	}
	if crc32.ChecksumIEEE(b[:addressBytes-4]) != binary.LittleEndian.Uint32(b[addressBytes-4:]) {
		return address{}, errors.New("address is garbled")
	}
	return address{
		transport: binary.LittleEndian.Uint32(b),
		endpoint:  transport.EndpointID(binary.LittleEndian.Uint64(b[4:])),
		nonce:     binary.LittleEndian.Uint64(b[12:]),
	}, nil
}

func newEndpoint(t *Transport, id transport.EndpointID, nonce uint64, spec transport.EndpointSpec) *Endpoint {
	e := &Endpoint{transport: t, id: id, nonce: nonce}
	e.sends.init(e, spec.SendDepth)
	e.recvs.init(e, spec.RecvDepth)
	e.counts.QueuePairs, e.counts.QueuePairsCreated = 1, 1
	return e
}

// ID names the endpoint.
func (e *Endpoint) ID() transport.EndpointID { return e.id }

// State is where it is in its life.
func (e *Endpoint) State() transport.EndpointState {
	e.transport.network.mu.Lock()
	defer e.transport.network.mu.Unlock()
	return e.state
}

// Local is the address.
func (e *Endpoint) Local() []byte { return e.address().encode() }

func (e *Endpoint) address() address {
	return address{uint32(e.transport.index), e.id, e.nonce}
}

// Connect makes the endpoint ready, whatever the peer is doing.
func (e *Endpoint) Connect(remote []byte, deadline time.Time) error {
	if err := e.beginConnect(); err != nil {
		return err
	}
	n := e.transport.network
	peer, err := decodeAddress(remote)
	if err == nil {
		err = n.suffer(AtConnect, e.transport, e.id, deadline)
	}
	if err == nil && !n.now().Before(deadline) {
		err = errors.New("deadline has passed")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e.connecting = false
	if err == nil && e.state != transport.StateNew {
		err = fmt.Errorf("retired meanwhile: %w", transport.ErrState)
	}
	if err != nil {
		e.enterError()
		return fmt.Errorf("connect: %w", err)
	}
	e.peer, e.state, e.wasReady = peer, transport.StateReady, true
	n.nudge()
	return nil
}

func (e *Endpoint) beginConnect() error {
	e.transport.network.mu.Lock()
	defer e.transport.network.mu.Unlock()
	if e.state != transport.StateNew || e.connecting {
		return fmt.Errorf("connect in state %d: %w", e.state, transport.ErrState)
	}
	e.connecting = true
	return nil
}

// Retire moves the endpoint to StateError.
func (e *Endpoint) Retire() error {
	n := e.transport.network
	if err := n.suffer(AtRetire, e.transport, e.id, zero); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	e.enterError()
	return nil
}

// Close destroys the queue pair.
func (e *Endpoint) Close() error {
	n := e.transport.network
	if err := e.beginClose(); err != nil || e.isClosed() {
		return err
	}
	err := n.suffer(AtDestroy, e.transport, e.id, zero)
	n.mu.Lock()
	defer n.mu.Unlock()
	e.closing = false
	if err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	e.state, e.closed = transport.StateClosed, true
	delete(e.transport.endpoints, e.id)
	for _, c := range []*Counts{&e.transport.counts, &e.counts} {
		c.QueuePairs--
		c.QueuePairsDestroyed++
	}
	n.forget(func(w *lateWrite) bool { return w.ep == e })
	return nil
}

func (e *Endpoint) isClosed() bool {
	e.transport.network.mu.Lock()
	defer e.transport.network.mu.Unlock()
	return e.closed
}

func (e *Endpoint) beginClose() error {
	e.transport.network.mu.Lock()
	defer e.transport.network.mu.Unlock()
	outstanding := e.sends.inUse() + e.recvs.inUse()
	switch {
	case e.closed:
		return nil
	case e.transport.dead:
		// No call will ever poll what it has outstanding.
	case outstanding > 0, e.state == transport.StateReady, e.connecting, e.closing:
		e.counts.BusyCloses++
		e.transport.counts.BusyCloses++
		return fmt.Errorf("endpoint in state %d has %d outstanding completions: %w", e.state, outstanding, transport.ErrBusy)
	}
	e.closing = true
	return nil
}

// fail is enterError without a caller having asked for it. Under the lock.
func (e *Endpoint) fail(detail string) {
	if e.state >= transport.StateError {
		return
	}
	e.enterError()
	if !e.reported {
		e.reported = true
		e.transport.report(transport.Event{Kind: transport.EventEndpointFailed, Endpoint: e.id, Detail: detail})
	}
}

// enterError moves to StateError: what is outstanding will be flushed. Under
// the lock.
func (e *Endpoint) enterError() {
	if e.state >= transport.StateError {
		return
	}
	e.state = transport.StateError
	for e.waiting.len() > 0 {
		r := e.waiting.pop()
		r.lateWrites()
		r.finish(transport.StatusFlushed)
	}
	for i := range e.sends.all {
		if r := &e.sends.all[i]; r.stage == stageWire || r.stage == stageDone {
			r.flush()
		}
	}
	e.transport.network.nudge()
}
