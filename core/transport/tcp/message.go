package tcp

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// The codes of messages.
const (
	codeAck      uint8 = iota + 1 // nothing but what every message carries
	codeAccept                    // the accepting side is ready; op and recv are its depths
	codeSend                      // payload of a send
	codeWrite                     // payload of a write
	codeWriteImm                  // payload of a write with immediate
	codeRead                      // asks for bytes
	codeReadData                  // has them
	codeRefuse                    // this request is not possible; status says why
)

var codes = wire.Codes(codeAck, codeAccept, codeSend, codeWrite, codeWriteImm, codeRead, codeReadData, codeRefuse)

// message is what the authenticated header says beside wire.Head's own fields.
// A request longer than a segment travels as several messages with the same
// op, perhaps over several sockets; each says all that is needed to place it.
type message struct {
	code uint8
	// ack and credit are totals, so that a late or repeated one changes
	// nothing: how many requests of the other side have been carried out, and
	// how many receives it may use up.
	ack, credit uint64

	op     uint64 // number of the request, from 0
	recv   uint64 // number of the receive that it uses up, from 0
	key    uint64 // region of the receiving side
	off    uint64 // where in it the request begins
	total  uint32 // bytes of the whole request
	at     uint32 // where in the request this payload begins
	imm    uint32
	status transport.Status
}

// extraBytes is the length of a message in wire.Head.Extra.
const extraBytes = 64

func (m *message) encode(b *[extraBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], m.ack)
	binary.LittleEndian.PutUint64(b[8:], m.credit)
	binary.LittleEndian.PutUint64(b[16:], m.op)
	binary.LittleEndian.PutUint64(b[24:], m.recv)
	binary.LittleEndian.PutUint64(b[32:], m.key)
	binary.LittleEndian.PutUint64(b[40:], m.off)
	binary.LittleEndian.PutUint32(b[48:], m.total)
	binary.LittleEndian.PutUint32(b[52:], m.at)
	binary.LittleEndian.PutUint32(b[56:], m.imm)
	b[60], b[61], b[62], b[63] = byte(m.status), 0, 0, 0
}

// decodeMessage takes a message out of a genuine header.
func decodeMessage(h *wire.Head) (m message, ok bool) {
	b := h.Extra
	if len(b) != extraBytes || b[61]|b[62]|b[63] != 0 || b[60] > byte(transport.StatusOther) {
		return m, false
	}
	m = message{
		code:   h.Code,
		ack:    binary.LittleEndian.Uint64(b[0:]),
		credit: binary.LittleEndian.Uint64(b[8:]),
		op:     binary.LittleEndian.Uint64(b[16:]),
		recv:   binary.LittleEndian.Uint64(b[24:]),
		key:    binary.LittleEndian.Uint64(b[32:]),
		off:    binary.LittleEndian.Uint64(b[40:]),
		total:  binary.LittleEndian.Uint32(b[48:]),
		at:     binary.LittleEndian.Uint32(b[52:]),
		imm:    binary.LittleEndian.Uint32(b[56:]),
		status: transport.Status(b[60]),
	}
	return m, m.total <= maxRequestBytes && m.fits(h.PayloadBytes)
}

// fits reports whether a payload of n bytes can belong to the message: bytes
// inside the request where there shall be some, none elsewhere.
func (m *message) fits(n int64) bool {
	switch m.code {
	case codeSend, codeWrite, codeWriteImm, codeReadData:
		return (n > 0 || m.total == 0) && int64(m.at)+n <= int64(m.total)
	}
	return n == 0
}

// usesReceive reports whether a request uses up a receive of the peer.
func usesReceive(op transport.Opcode) bool {
	return op == transport.OpSend || op == transport.OpWriteImm
}

func codeOf(op transport.Opcode) uint8 {
	switch op {
	case transport.OpSend:
		return codeSend
	case transport.OpWrite:
		return codeWrite
	case transport.OpWriteImm:
		return codeWriteImm
	}
	return codeRead
}
