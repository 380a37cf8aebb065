package fabric

import (
	"fmt"
	"sync/atomic"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/op"
	"github.com/moewire/moewire/core/transport"
)

// Kind says what an operation does.
type Kind uint8

// The kinds. What is named in Messages or Immediates works in that mode only.
const (
	Send       Kind = iota + 1 // Messages: bytes into a receive of the peer
	Recv                       // Messages: of the peer's next message
	Write                      // into a region of the peer
	WriteImm                   // Immediates: and its ReceiveImm gets a number, after the bytes
	Read                       // out of a region of the peer
	ReceiveImm                 // Immediates: the number of a peer's WriteImm; moves no bytes
)

// Request describes an operation.
type Request struct {
	Kind Kind
	Peer endpoint.Peer
	// Region, Off and Bytes are the memory on this side. It is the carrier's
	// until the operation is released. Region may be 0 if Bytes is; with
	// ReceiveImm all are 0.
	Region RegionID
	Off    int64
	Bytes  int64
	// Remote and RemoteOff are the memory on the peer's side: Write, WriteImm,
	// Read.
	Remote    transport.RemoteRegion
	RemoteOff int64
	Imm       uint32 // WriteImm
}

func (k Kind) mode() (m Mode, any bool) {
	switch k {
	case Send, Recv:
		return Messages, false
	case WriteImm, ReceiveImm:
		return Immediates, false
	}
	return 0, true
}

func (k Kind) hasRemote() bool { return k == Write || k == WriteImm || k == Read }

// check returns the region, nil if there is none.
func (f *Fabric) check(r *Request) (transport.Region, error) {
	if r.Kind < Send || r.Kind > ReceiveImm {
		return nil, invalid("kind is %d, allowed %d to %d", r.Kind, Send, ReceiveImm)
	}
	if m, any := r.Kind.mode(); !any && m != f.cfg.Mode {
		return nil, fmt.Errorf("%w: kind %d needs a fabric for %v, this one is for %v", transport.ErrNotSupported, r.Kind, m, f.cfg.Mode)
	}
	region, err := f.region(r.Region)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	if region != nil {
		size = int64(len(region.Bytes()))
	}
	if r.Off < 0 || r.Bytes < 0 || r.Off > size || r.Bytes > size-r.Off {
		return nil, invalid("%d bytes at %d, the region has %d", r.Bytes, r.Off, size)
	}
	if r.Kind == ReceiveImm && r.Region != 0 {
		return nil, invalid("region is %d, and receiving an immediate has none", r.Region)
	}
	return region, f.checkRemote(r)
}

func (f *Fabric) checkRemote(r *Request) error {
	if !r.Kind.hasRemote() {
		if (r.Kind == Send || r.Kind == Recv) && r.Bytes > f.cfg.SliceBytes {
			return invalid("a message of %d bytes, at most %d are allowed", r.Bytes, f.cfg.SliceBytes)
		}
		return nil
	}
	size := r.Remote.SizeBytes
	if r.RemoteOff < 0 || uint64(r.RemoteOff) > size || uint64(r.Bytes) > size-uint64(r.RemoteOff) {
		return invalid("%d bytes at %d of the peer's region, which has %d", r.Bytes, r.RemoteOff, size)
	}
	if n := f.numParts(r); n > int64(min(f.cfg.SendDepth, op.MaxParts)) {
		return invalid("%d bytes are %d slices, at most %d are allowed: send_depth %d", r.Bytes, n, min(f.cfg.SendDepth, op.MaxParts), f.cfg.SendDepth)
	}
	return nil
}

// numParts is how many slices an operation has, at least 1.
func (f *Fabric) numParts(r *Request) int64 {
	if !r.Kind.hasRemote() || r.Bytes == 0 {
		return 1
	}
	return (r.Bytes-1)/f.cfg.SliceBytes + 1
}

// work is what the poller needs of an operation, and what its requests are
// made in: nothing of it is on the heap each time. The poller reads the atomics
// before it completes a part: afterwards the slot may serve another operation.
type work struct {
	id    atomic.Uint64 // of part 0; for breakDown
	parts atomic.Int32
	kind  atomic.Uint32
	conn  atomic.Pointer[conn]
	waits atomic.Pointer[peer] // ReceiveImm
	// left is how many slices have to end before the one with the immediate
	// is posted. While it is above 0 that one is not, so the slot stays.
	left   atomic.Int32
	failed atomic.Bool // one of these

	send, last             [1]transport.SendRequest
	recv                   [1]transport.RecvRequest
	sendPieces, lastPieces [2]transport.Piece
}

func slotOf(id uint64) int { return int(id >> 16 & 0xffff) }

var opcodes = [...]transport.Opcode{Send: transport.OpSend, Write: transport.OpWrite, WriteImm: transport.OpWriteImm, Read: transport.OpRead, ReceiveImm: 0}

// slice makes the request of one part.
func (f *Fabric) slice(q *transport.SendRequest, pieces []transport.Piece, r *Request, region transport.Region, ref op.Ref, part int64) {
	off := part * f.cfg.SliceBytes
	n := min(r.Bytes-off, f.cfg.SliceBytes)
	*q = transport.SendRequest{ID: ref.RequestID(int(part)), Op: opcodes[r.Kind], Local: pieces[:0]}
	if r.Kind == Send {
		q.Local = append(q.Local, f.header.piece(slotOf(q.ID)))
	}
	if n > 0 {
		q.Local = append(q.Local, transport.Piece{Region: region, Off: int(r.Off + off), Bytes: int(n)})
	}
	if r.Kind.hasRemote() {
		q.Remote, q.RemoteOff = r.Remote, uint64(r.RemoteOff+off)
	}
	if r.Kind == WriteImm {
		if off+n < r.Bytes {
			q.Op = transport.OpWrite // the last one has the immediate
		} else {
			q.Imm = r.Imm
		}
	}
}
