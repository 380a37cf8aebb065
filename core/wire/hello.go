package wire

import "encoding/binary"

// Sizes of the frames of a handshake.
const (
	helloBytes         = 112 // header without blob
	nonceFieldBytes    = 32
	minHelloFrameBytes = LengthBytes + helloBytes + TrailerBytes
	maxHelloFrameBytes = minHelloFrameBytes + MaxBlobBytes
)

// maxPayloadBytes keeps chunk indexes far below 2^32.
const maxPayloadBytes = 1 << 40

// helloFrame is the header of a frame of the handshake.
type helloFrame struct {
	kind       kind
	protection Protection
	flags      byte
	keyID      uint32
	client     [nonceFieldBytes]byte // nonces
	server     [nonceFieldBytes]byte
	from, to   PeerID
	reason     Reason
	blob       []byte
}

// helloFrameBytes is FrameBytes for handshakes.
func helloFrameBytes(prefix []byte) (int, error) {
	n := int64(binary.LittleEndian.Uint32(prefix))
	if n < minHelloFrameBytes-LengthBytes || n > maxHelloFrameBytes-LengthBytes {
		return 0, ErrLength
	}
	return LengthBytes + int(n), nil
}

// encode makes the frame, but for its trailer.
func (f *helloFrame) encode() []byte {
	frame := make([]byte, minHelloFrameBytes+len(f.blob))
	setLength(frame)
	b := frame[LengthBytes:]
	b[0], b[1], b[2], b[3] = Version, byte(f.kind), byte(f.protection), f.flags
	binary.LittleEndian.PutUint32(b[4:], f.keyID)
	copy(b[8:], f.client[:])
	copy(b[40:], f.server[:])
	copy(b[72:], f.from[:])
	copy(b[88:], f.to[:])
	binary.LittleEndian.PutUint16(b[104:], uint16(f.reason))
	copy(b[helloBytes:], f.blob)
	return frame
}

// decodeHello reads a frame of a length that helloFrameBytes allows. The blob
// is a part of the frame's memory. ok is false if a field that must be zero is
// not.
func decodeHello(frame []byte) (f helloFrame, ok bool) {
	b := frame[LengthBytes : len(frame)-TrailerBytes]
	f = helloFrame{
		kind: kind(b[1]), protection: Protection(b[2]), flags: b[3],
		keyID: helloKeyID(frame),
		blob:  b[helloBytes:],
	}
	copy(f.client[:], b[8:])
	copy(f.server[:], b[40:])
	copy(f.from[:], b[72:])
	copy(f.to[:], b[88:])
	f.reason = knownReason(binary.LittleEndian.Uint16(b[104:]))
	zero := binary.LittleEndian.Uint16(b[106:]) == 0 && binary.LittleEndian.Uint32(b[108:]) == 0
	return f, zero && f.flags&^flagFromServer == 0
}

// helloKeyID and helloVersion lie where every version of the format has them.
func helloKeyID(frame []byte) uint32    { return binary.LittleEndian.Uint32(frame[LengthBytes+4:]) }
func helloVersion(frame []byte) uint8   { return frame[LengthBytes] }
func isHello(frame []byte) bool         { return kind(frame[LengthBytes+1]) == kindHello }
func helloFromServer(frame []byte) byte { return frame[LengthBytes+3] & flagFromServer }

// knownReason reads the reason of a refusal. One that only a newer peer has is
// ErrDeclined here.
func knownReason(n uint16) Reason {
	if n >= uint16(numReasons) {
		return ErrDeclined
	}
	return Reason(n)
}
