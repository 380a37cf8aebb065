package wire

import (
	"encoding/binary"
	"time"
)

// Version is the format's version, in the first byte of every header.
const Version = 2

// Sizes of frames. docs/wire.md has the tables.
const (
	// LengthBytes is the length field before every header. It counts header
	// and trailer, little-endian.
	LengthBytes = 4
	// TrailerBytes is the time and the tag after every header.
	TrailerBytes = 8 + tagBytes
	// HeadBytes is the header of a message without Extra.
	HeadBytes = 80
	// MaxExtraBytes bounds Head.Extra.
	MaxExtraBytes = 256
	// MaxFrameBytes is the longest message frame, its length field included
	// and its payload not.
	MaxFrameBytes = LengthBytes + HeadBytes + MaxExtraBytes + TrailerBytes
	// ChunkBytes is how much of a payload gets one tag. A caller that hands pieces of
	// this length to a Digest spares it a copy.
	ChunkBytes = 16 << 10

	tagBytes  = 32
	headBytes = LengthBytes + HeadBytes // up to Extra
)

// MaxSkew is how far the time in a hello may lie from the receiver's clock,
// in either direction; exactly that much is still accepted.
const MaxSkew = 60 * time.Second

// kind is what a frame is.
type kind uint8

const (
	kindHello    kind = iota + 1 // client: its own id, the peer's id
	kindWelcome                  // server: its own id, the other nonce
	kindConfirm                  // client: I have the session's keys
	kindRefusal                  // server: genuine, but no, and why
	kindMessage                  // either, in a session
	kindDatagram                 // either, outside of any
	kindSingle                   // a request or its reply, outside of any
)

// Bits of the flags byte, offset 3 of every strict header.
const (
	flagFromServer = 1 << iota
	flagReply
	flagRefused

	knownFlags = flagFromServer | flagReply | flagRefused
)

// Head is what the header of a message says.
type Head struct {
	// Code says what kind of message it is: the caller's own numbers.
	Code uint8
	// Reply marks the answer to Request. Refused marks one that says no, and
	// Status why, in the caller's numbers or as a Reason (Session.Refuse).
	Reply, Refused bool
	Status         uint16
	// Request is the caller's id of a request, and of its reply.
	Request uint64
	// Seq counts the messages of a direction from 1. Seal sets it.
	Seq uint64
	// PayloadBytes is the length of the payload, as it was before encryption.
	// Seal sets it.
	PayloadBytes int64
	// ApartBytes is how many bytes at the end of the payload the digest does not cover: they
	// have a check of their own, which is in the header (Extra) or in the part that the digest
	// does cover. Only in sessions with Config.Apart. Under ProtectEncrypt everything is
	// covered, and Seal sets it to 0.
	ApartBytes uint32
	// Extra travels in the header, authenticated before anything else of the
	// message is believed: where a payload goes, for instance. At most
	// MaxExtraBytes. After OpenHead it is a part of the frame's memory.
	Extra []byte

	digest [tagBytes]byte
}

// FrameBytes reads the length of a message frame from its first LengthBytes
// bytes and returns how many bytes the whole frame has, these included.
// ErrLength if no message frame is that long. A receiver that reads exact
// amounts calls it; others use a Splitter.
func FrameBytes(prefix []byte) (int, error) {
	if len(prefix) < LengthBytes {
		return 0, ErrLength
	}
	n := int64(binary.LittleEndian.Uint32(prefix))
	if n < HeadBytes+TrailerBytes || n > MaxFrameBytes-LengthBytes {
		return 0, ErrLength
	}
	return LengthBytes + int(n), nil
}

// putHead writes a message's header, without its length field and Extra.
func putHead(b []byte, h *Head, s *Session) {
	_ = b[HeadBytes-1]
	b[0], b[1], b[2], b[3] = Version, byte(kindMessage), byte(s.protection), headFlags(h, s.role)
	binary.LittleEndian.PutUint32(b[4:], s.keyID)
	binary.LittleEndian.PutUint64(b[8:], s.id)
	binary.LittleEndian.PutUint64(b[16:], h.Seq)
	binary.LittleEndian.PutUint64(b[24:], h.Request)
	binary.LittleEndian.PutUint64(b[32:], uint64(h.PayloadBytes))
	b[40], b[41] = h.Code, 0
	binary.LittleEndian.PutUint16(b[42:], h.Status)
	binary.LittleEndian.PutUint32(b[44:], h.ApartBytes)
	copy(b[48:HeadBytes], h.digest[:])
}

// getHead is the reverse of putHead, for what no check looks at.
func getHead(b []byte) Head {
	h := Head{
		Code:         b[40],
		Reply:        b[3]&flagReply != 0,
		Refused:      b[3]&flagRefused != 0,
		Status:       binary.LittleEndian.Uint16(b[42:]),
		Request:      binary.LittleEndian.Uint64(b[24:]),
		Seq:          binary.LittleEndian.Uint64(b[16:]),
		PayloadBytes: int64(binary.LittleEndian.Uint64(b[32:])),
		ApartBytes:   binary.LittleEndian.Uint32(b[44:]),
		Extra:        b[HeadBytes:],
	}
	copy(h.digest[:], b[48:HeadBytes])
	return h
}

func headFlags(h *Head, role Role) byte {
	flags := directionOf(role)
	if h.Reply {
		flags |= flagReply
	}
	if h.Refused {
		flags |= flagRefused
	}
	return flags
}

// directionOf is the direction bit of what a role sends.
func directionOf(role Role) byte {
	if role == RoleServer {
		return flagFromServer
	}
	return 0
}

// CodeSet is a set of message codes.
type CodeSet [4]uint64

// Codes makes a set.
func Codes(codes ...uint8) *CodeSet {
	s := &CodeSet{}
	for _, c := range codes {
		s[c>>6] |= 1 << (c & 63)
	}
	return s
}

// Has reports whether a code is in the set. A nil set has all.
func (s *CodeSet) Has(code uint8) bool {
	return s == nil || s[code>>6]>>(code&63)&1 == 1
}
