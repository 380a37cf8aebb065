package tcp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/moewire/moewire/core/transport"
)

// endpoint is one end of a connection of one socket or several.
type endpoint struct {
	t     *Transport
	id    transport.EndpointID
	token token
	spec  transport.EndpointSpec

	state atomic.Uint32 // transport.EndpointState; changed under mu
	// Completions that were not taken.
	unpolledSends, unpolledRecvs atomic.Int64
	queued                       bool        // under t.readyMu
	hasWork                      atomic.Bool // there may be something to do

	// io is held by the goroutine that reads and writes the sockets.
	io          sync.Mutex
	conns       []*conn
	leaving     []*conn // of the past, for notices
	linger      bool    // after a refusal: read and forget until the peer ends
	losing      bool    // a socket has ended: what the others have is read
	refused     bool    // codeRefuse is to be sent
	refusal     message
	refusedRecv uint64 // of a send that did not fit
	refusedSend bool

	mu         sync.Mutex
	rendezvous rendezvous
	closed     bool
	ended      bool // ending is valid
	ending     ending
	out        outgoing
	in         incoming
	sinceShort atomic.Int64 // since when a request waits for a receive, 0: none does
}

var _ transport.Endpoint = (*endpoint)(nil)

// NewEndpoint makes an endpoint; its sockets come with Connect.
func (t *Transport) NewEndpoint(spec transport.EndpointSpec) (transport.Endpoint, error) {
	if !depthsOK(spec.SendDepth, spec.RecvDepth) {
		return nil, fmt.Errorf("tcp: EndpointSpec has SendDepth %d and RecvDepth %d, allowed are 1 to %d",
			spec.SendDepth, spec.RecvDepth, MaxDepth)
	}
	ep := &endpoint{t: t, spec: spec}
	if err := t.admit(ep); err != nil {
		return nil, err
	}
	t.done.reserve(spec.SendDepth + spec.RecvDepth)
	ep.out.init(spec.SendDepth)
	ep.in.init(spec.RecvDepth)
	return ep, nil
}

// admit reserves a place and makes the endpoint known to peers that dial.
func (t *Transport) admit(ep *endpoint) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return fmt.Errorf("tcp: transport is closed: %w", transport.ErrState)
	case t.numEndpoint >= t.config.NumEndpoints:
		return fmt.Errorf("tcp: Config.NumEndpoints is %d: %w", t.config.NumEndpoints, transport.ErrWouldBlock)
	}
	t.numEndpoint++
	t.lastID++
	ep.id, ep.token = t.lastID, newToken()
	t.endpoints[ep.token] = ep
	return nil
}

// find gives the endpoint that a dialler has named; nil if it does not wait for a peer
// any more.
func (t *Transport) find(to token) *endpoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.endpoints[to]
}

// forget makes an endpoint unknown to peers that dial.
func (t *Transport) forget(ep *endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.endpoints, ep.token)
}

// ID names the endpoint.
func (ep *endpoint) ID() transport.EndpointID { return ep.id }

// State is where the endpoint is.
func (ep *endpoint) State() transport.EndpointState {
	return transport.EndpointState(ep.state.Load())
}

func (ep *endpoint) is(s transport.EndpointState) bool { return ep.State() == s }

// Local is what the peer needs.
func (ep *endpoint) Local() []byte {
	a := address{id: ep.id, token: ep.token, numSockets: ep.t.config.NumSockets, addrs: ep.t.addrs}
	return a.encode()
}

// PostSend queues requests. Small ones are written to the socket at once if it is free;
// the rest is left to the goroutine that polls.
func (ep *endpoint) PostSend(requests []transport.SendRequest) (posted int, err error) {
	ep.mu.Lock()
	switch s := ep.State(); {
	case s == transport.StateError:
		posted, err = ep.queueAndFlush(requests)
	case s != transport.StateReady:
		err = ep.wrongState("PostSend")
	default:
		posted, err = ep.queueSends(requests)
	}
	small := ep.out.queuedBytes <= inlineWork
	ep.mu.Unlock()
	if posted > 0 {
		ep.attend(small)
	}
	return posted, err
}

func (ep *endpoint) queueSends(requests []transport.SendRequest) (posted int, err error) {
	for i := range requests {
		if err := ep.queueSend(&requests[i]); err != nil {
			return posted, err
		}
		posted++
	}
	return posted, nil
}

// attend sees to it that what was posted moves. It leaves hasWork alone: the goroutine
// that has set it may want more than that.
func (ep *endpoint) attend(now bool) {
	if !now || !ep.is(transport.StateReady) || !ep.io.TryLock() {
		ep.t.schedule(ep)
		return
	}
	more := ep.transmit()
	ep.unlockIO()
	if more {
		ep.t.schedule(ep)
	}
}

// PostRecv queues receives.
func (ep *endpoint) PostRecv(requests []transport.RecvRequest) (posted int, err error) {
	ep.mu.Lock()
	for i := range requests {
		if err = ep.queueRecv(&requests[i]); err != nil {
			break
		}
		posted++
	}
	grant := ep.is(transport.StateReady) && ep.in.shouldGrant()
	ep.mu.Unlock()
	if posted > 0 && ep.is(transport.StateError) {
		ep.t.interrupt()
	}
	if grant {
		ep.attend(true)
	}
	return posted, err
}

func (ep *endpoint) unpolled() int64 { return ep.unpolledSends.Load() + ep.unpolledRecvs.Load() }

func (ep *endpoint) wrongState(call string) error {
	return &stateError{call, ep.State()}
}

// stateError says which state it was, without making a text on a path that
// may be hot.
type stateError struct {
	call  string
	state transport.EndpointState
}

func (e *stateError) Error() string {
	names := [...]string{"new", "ready", "in error", "closed"}
	return "tcp: " + e.call + " on an endpoint that is " + names[e.state&3] + ": " + transport.ErrState.Error()
}

func (e *stateError) Unwrap() error { return transport.ErrState }

// Retire ends the connection: what is outstanding completes with StatusFlushed.
func (ep *endpoint) Retire() error {
	ep.io.Lock()
	defer ep.unlockIO()
	ep.end(ending{retired: true})
	return nil
}

// Close releases the place.
func (ep *endpoint) Close() error {
	ep.io.Lock()
	defer ep.unlockIO()
	ep.mu.Lock()
	defer ep.mu.Unlock()
	switch {
	case ep.closed:
		return nil
	case ep.is(transport.StateReady), ep.rendezvous.busy():
		return fmt.Errorf("tcp: endpoint is not retired: %w", transport.ErrBusy)
	case ep.unpolled() != 0 || ep.in.outstanding() != 0:
		return fmt.Errorf("tcp: %d completions are not polled, %d receives are posted: %w",
			ep.unpolled(), ep.in.outstanding(), transport.ErrBusy)
	case ep.out.head != ep.out.tail:
		return fmt.Errorf("tcp: the kernel still reads memory of %d requests: %w", ep.out.tail-ep.out.head, transport.ErrBusy)
	}
	ep.closed = true
	ep.state.Store(uint32(transport.StateClosed))
	ep.closeConns()
	for _, c := range ep.leaving { // of a peer that acknowledges what it has not got
		c.close()
	}
	ep.rendezvous.dropParked()
	ep.t.leave(ep)
	return nil
}

// leave is the reverse of admit.
func (t *Transport) leave(ep *endpoint) {
	t.done.reserve(-(ep.spec.SendDepth + ep.spec.RecvDepth))
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.endpoints, ep.token)
	t.numEndpoint--
}

// unlockIO leaves the sockets, and checks whether another goroutine wanted them
// meanwhile.
func (ep *endpoint) unlockIO() {
	ep.io.Unlock()
	if ep.hasWork.Load() {
		ep.t.schedule(ep)
	}
}

// run gives the endpoint a turn: it reads what has arrived and writes what is due. When
// another goroutine is at it, that one, or the next, sees hasWork.
func (ep *endpoint) run() {
	ep.hasWork.Store(true)
	if !ep.io.TryLock() {
		return
	}
	ep.hasWork.Store(false)
	if ep.work() {
		ep.hasWork.Store(true)
	}
	ep.unlockIO()
}

// work returns whether there is more to do than fits a turn.
func (ep *endpoint) work() (more bool) {
	ep.handleLeaving()
	for _, c := range ep.conns {
		if c.handleNotices(); c.readable.Load() && c.receive() {
			more = true
		}
		if len(ep.conns) == 0 {
			return false // ended
		}
	}
	if ep.is(transport.StateReady) && ep.transmit() {
		more = true
	}
	return more
}

// transmit writes what is due; it returns whether there is more than fits a
// turn.
func (ep *endpoint) transmit() (more bool) {
	for _, c := range ep.conns {
		if c.writable.Load() && c.send() {
			more = true
		}
		if len(ep.conns) == 0 {
			return false // ended
		}
	}
	return more
}
