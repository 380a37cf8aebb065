// Package transport says what moves bytes between ranks that cannot map one another's
// memory. A Transport has Regions (memory that a peer may write or read) and Endpoints (one connection to one
// peer). It reports what became of every work request as a Completion. It has the shape
// of RDMA verbs, because hardware gives no more than that. Nothing is promised about the
// order in which work requests of one endpoint, or of several, complete or become visible
// at the peer. Code that needs an order makes it itself: it numbers its messages and
// counts completions.
package transport

import (
	"errors"
	"time"
)

// Sentinels that callers must tell apart. A domain returns the first two, too.
var (
	// ErrClosed means that the domain was closed in this process.
	ErrClosed = errors.New("domain is closed")
	// ErrMismatch means that two ranks disagree about a parameter.
	ErrMismatch = errors.New("ranks disagree")
	// ErrWouldBlock means that a bound is reached: nothing has happened, try
	// again once something has completed.
	ErrWouldBlock = errors.New("would block")
	// ErrNoResource means that the system has no more of something (queue
	// pairs, memory that may be locked, descriptors): nothing has happened.
	ErrNoResource = errors.New("no resource left")
	// ErrBusy means that a thing cannot be closed yet: work requests of it
	// await a completion.
	ErrBusy = errors.New("work requests are outstanding")
	// ErrState means that an endpoint is not in the state that a call needs.
	// Nothing has happened.
	ErrState = errors.New("endpoint is not in that state")
	// ErrNotSupported means that this carrier, or this device, cannot do it.
	ErrNotSupported = errors.New("not supported")
)

// Opcode says what a work request does, and what a completion is of.
type Opcode uint8

// The operations. A send or a write with immediate uses up a receive that the
// peer has posted; a plain write or read is not seen by the peer's software.
const (
	OpSend     Opcode = iota + 1 // bytes into the peer's oldest receive
	OpWrite                      // bytes into a region of the peer
	OpWriteImm                   // the same, and a receive completes there with the immediate
	OpRead                       // bytes out of a region of the peer
	OpRecv                       // on the receiving side: of a send
	OpRecvImm                    // on the receiving side: of a write with immediate
)

// Status is how a work request ended.
type Status uint8

// The ends of a work request. Only StatusOK says anything about bytes; after
// any other one the endpoint is in the error state.
const (
	StatusOK          Status = iota
	StatusFlushed            // the endpoint went to the error state before its turn
	StatusLocal              // bad local memory, length or request
	StatusRemote             // the peer refused: region, key, bounds or access
	StatusNoReceive          // the peer had no receive posted, for too long
	StatusUnreachable        // no answer, for too long, or the connection broke
	StatusOther              // anything else, with the carrier's own code
)

// EndpointID names one endpoint of one transport. It is never used twice.
type EndpointID uint64

// Completion is the end of one work request.
type Completion struct {
	ID       uint64 // the work request's
	Endpoint EndpointID
	Op       Opcode
	Status   Status
	HasImm   bool
	Imm      uint32 // OpRecvImm
	NumBytes uint32 // received, read or written; StatusOK only
	Vendor   uint32 // the carrier's own code of an error
}

// Access says what a peer may do in a region.
type Access uint8

// Bits of Access. Local use is always allowed.
const (
	AccessWrite Access = 1 << iota
	AccessRead
)

// RemoteRegion is what a peer needs to reach a region. It is plain data and
// travels in messages; it is worthless once the region is closed.
type RemoteRegion struct {
	Addr      uint64 // where the region begins, in the carrier's own terms
	SizeBytes uint64
	Key       uint64
}

// Region is registered memory. The owner of the memory keeps it alive until
// Close has returned.
type Region interface {
	// Bytes is the memory.
	Bytes() []byte
	// Remote is what a peer needs to reach it.
	Remote() RemoteRegion
	// Close ends the registration: later accesses by peers fail with StatusRemote.
	// ErrBusy while a work request that names it may still touch the memory; some
	// carriers hold it until the completion has been polled, others (tcp) release it
	// before. Idempotent.
	Close() error
}

// RemoteFor is what the peer of an endpoint needs to reach a region. A transport
// of several devices has each endpoint on one of them, and a key for each.
func RemoteFor(r Region, e Endpoint) RemoteRegion {
	if r, ok := r.(interface{ RemoteFor(e Endpoint) RemoteRegion }); ok {
		return r.RemoteFor(e)
	}
	return r.Remote()
}

// Piece is a part of a local region.
type Piece struct {
	Region Region
	Off    int
	Bytes  int
}

// SendRequest is a work request for the sending side. The pieces' memory
// belongs to the carrier until the request's completion, unless Inline is set.
type SendRequest struct {
	ID        uint64
	Op        Opcode // OpSend, OpWrite, OpWriteImm or OpRead
	Inline    bool   // at most Limits.InlineBytes, copied when posted
	Imm       uint32
	Local     []Piece // at most Limits.NumPieces; OpRead: where bytes go
	Remote    RemoteRegion
	RemoteOff uint64
}

// RecvRequest is a work request that an incoming send, or write with
// immediate, uses up.
type RecvRequest struct {
	ID    uint64
	Local []Piece // none: for writes with immediate, and sends of no bytes
}

// EndpointState is where an endpoint is in its life. It only goes forward.
type EndpointState uint8

// The states. Everything that is posted in StateError, or was outstanding when
// it began, completes with StatusFlushed.
const (
	StateNew EndpointState = iota
	StateReady
	StateError
	StateClosed
)

// EndpointSpec says how an endpoint is made.
type EndpointSpec struct {
	SendDepth int // send requests outstanding at most
	RecvDepth int // receive requests outstanding at most
	// A request is outstanding until its completion has been polled.
}

// Endpoint is one end of one connection. Post, Retire and State are safe for concurrent
// use. Post and State never block. Connect and Close may, so they are not called under a
// lock. Nor does a goroutine that must go on call Retire: it waits for no peer, but may
// be a command to a device, which answers late or never.
type Endpoint interface {
	ID() EndpointID
	State() EndpointState
	// Local is what the peer's Connect needs, at most MaxAddressBytes.
	Local() []byte
	// Connect brings the endpoint to StateReady with the peer's Local, or
	// fails before the deadline and leaves it in StateError. Both sides call
	// it. Receives may be posted before; they should be.
	Connect(remote []byte, deadline time.Time) error
	// PostSend hands over requests in order and returns how many were accepted: those
	// complete exactly once, the others never. ErrWouldBlock at SendDepth, ErrState
	// before StateReady and after StateClosed. A request may be wrong in itself: its Op,
	// a piece outside its region, a region that is closed or another transport's, too
	// many pieces or bytes. It gets an error that says so: it is not posted, those before
	// it are, and the endpoint stays as it is.
	PostSend(requests []SendRequest) (posted int, err error)
	// PostRecv is the same for receives, bounded by RecvDepth.
	PostRecv(requests []RecvRequest) (posted int, err error)
	// Retire moves the endpoint to StateError, so that everything
	// outstanding completes. Idempotent.
	Retire() error
	// Close frees what the endpoint holds (its queue pair, its socket).
	// ErrBusy while completions have not been polled, or when it was ready
	// and has not been retired. Idempotent.
	Close() error
}

// MaxAddressBytes bounds Endpoint.Local.
const MaxAddressBytes = 512

// EventKind is what a carrier reports besides completions.
type EventKind uint8

// The events. Every one that a device raises becomes one of these.
const (
	EventEndpointFailed EventKind = iota + 1 // Endpoint went to StateError by itself
	EventDeviceDown                          // no endpoint of this transport works
	EventDeviceUp                            // it may work again: make new ones
	EventOther                               // counted, nothing to do
)

// Event is an asynchronous report.
type Event struct {
	Kind     EventKind
	Endpoint EndpointID // of EventEndpointFailed
	Detail   string     // for people
}

// Limits are the bounds of a transport. None is 0.
type Limits struct {
	NumEndpoints    int // endpoints not closed yet, at most
	SendDepth       int
	RecvDepth       int
	NumPieces       int
	InlineBytes     int // may be 0: no inline data
	MaxRequestBytes int64
}

// Transport is one device, or one way, to reach peers. All methods are safe
// for concurrent use unless they say otherwise.
type Transport interface {
	// Name is that of the carrier: "verbs", "tcp", "shm", "fake".
	Name() string
	// Device says which NIC or interface, for people.
	Device() string
	Limits() Limits
	// Register makes memory usable in work requests and, by access, for
	// peers. mem is not Go heap memory unless the carrier says that it may.
	Register(mem []byte, access Access) (Region, error)
	// NewEndpoint reserves a queue pair, or what stands for one.
	// ErrNoResource when the system has none; ErrWouldBlock at NumEndpoints.
	NewEndpoint(spec EndpointSpec) (Endpoint, error)
	// Poll moves finished work requests to done and returns how many; it
	// never blocks and allocates nothing. One goroutine at a time.
	Poll(done []Completion) (int, error)
	// Wait blocks until Poll or PollEvents may have something, Wake was
	// called, or d has passed. One goroutine at a time.
	Wait(d time.Duration) error
	// Wake ends a Wait, now or the next one.
	Wake()
	// PollEvents moves reports to events and returns how many.
	PollEvents(events []Event) int
	// Close ends everything that is left. ErrBusy while endpoints or regions
	// are not closed. Idempotent.
	Close() error
}
