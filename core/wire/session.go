package wire

import (
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/moewire/moewire/core/internal/gmac"
)

// Protection says how payloads are protected. Headers always are. Both sides
// must have the same; a handshake between others fails.
type Protection uint8

const (
	// ProtectDigest makes every change to a payload noticed; an eavesdropper can read it.
	// The payload itself is sent as it is.
	ProtectDigest Protection = iota + 1
	// ProtectEncrypt is AES-256-GCM: it cannot be read either. Headers can,
	// Extra included.
	ProtectEncrypt
)

// String names the protection.
func (p Protection) String() string {
	switch p {
	case ProtectDigest:
		return "digest"
	case ProtectEncrypt:
		return "encrypt"
	}
	return fmt.Sprintf("Protection(%d)", uint8(p))
}

// Session is one side of an authenticated connection: it makes the frames that
// this side sends and opens those of the other. Sealing is for one goroutine
// at a time and opening is for one goroutine at a time; the two may differ.
// Nothing of it allocates once the first frame has gone each way. It has
// nothing to close. It never shows a key.
type Session struct {
	role       Role
	protection Protection
	ordered    bool
	apart      bool
	export     [KeyBytes]byte
	keyID      uint32
	id         uint64
	maxPayload int64
	codes      *CodeSet
	counters   *Counters
	now        func() time.Time

	// Sealing.
	out    *signer
	outSeq uint64
	sealer *Digest // of what is sent

	// Opening.
	in     *signer
	window window

	// Every session has all of these; which of them see payloads, its protection says.
	outPayload, inPayload cipher.AEAD // ProtectEncrypt
	inDigest              *gmac.MAC   // ProtectDigest
}

// ID names the session in both processes; it is no secret.
func (s *Session) ID() uint64 { return s.id }

// KeyID is that of the key with which the session was begun.
func (s *Session) KeyID() uint32 { return s.keyID }

// Export derives a secret that both sides have and no other process has. Another label, and
// another session, give another one.
func (s *Session) Export(label string) [KeyBytes]byte {
	mac := hmac.New(sha256.New, s.export[:])
	mac.Write([]byte(label))
	return [KeyBytes]byte(mac.Sum(nil))
}

// Protection is what both sides have agreed on.
func (s *Session) Protection() Protection { return s.protection }

// String never shows a key.
func (s *Session) String() string { return hidden }

// GoString never shows a key.
func (s *Session) GoString() string { return hidden }

// Format never shows a key, whatever the verb.
func (s *Session) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// Seal appends the frame of the next message to dst and returns it: what is
// to be written before the payload, at most MaxFrameBytes. It reads the
// payload (under ProtectDigest) and does not keep it; the payload must not
// change before it was written. It sets head.Seq and head.PayloadBytes.
//
// Under ProtectEncrypt the payload's bytes are not what follows: an Encryptor
// makes those, and Seal uses the pieces for their length only.
//
// ErrLength when the payload or Extra is over its bound, or ApartBytes over the payload, ErrCode for a code
// that the session does not have, ErrExhausted at the end of the sequence
// numbers: dst is as it was.
func (s *Session) Seal(dst []byte, head *Head, payload ...[]byte) ([]byte, error) {
	total, err := s.sealable(head, payload)
	if err != nil {
		return dst, err
	}
	s.outSeq++
	head.Seq, head.PayloadBytes, head.digest = s.outSeq, total, [tagBytes]byte{}
	if s.protection == ProtectDigest {
		head.digest = s.sealer.of(head.Seq, total-int64(head.ApartBytes), payload)
	} else {
		head.ApartBytes = 0
	}
	n := headBytes + len(head.Extra) + TrailerBytes
	dst = slices.Grow(dst, n)
	frame := dst[len(dst) : len(dst)+n]
	setLength(frame)
	putHead(frame[LengthBytes:], head, s)
	copy(frame[headBytes:], head.Extra)
	s.out.sign(frame, clock(s.now))
	return dst[:len(dst)+n], nil
}

func (s *Session) sealable(head *Head, payload [][]byte) (int64, error) {
	total := int64(0)
	for _, p := range payload {
		total += int64(len(p))
	}
	switch {
	case len(head.Extra) > MaxExtraBytes, total > s.maxPayload, int64(head.ApartBytes) > total:
		return 0, ErrLength
	case head.ApartBytes > 0 && !s.apart:
		return 0, ErrField
	case !s.codes.Has(head.Code):
		return 0, ErrCode
	case s.outSeq == 1<<64-1:
		return 0, ErrExhausted
	}
	return total, nil
}

// FrameBytes is the function of that name for a frame of this session: a length that no
// message has is counted.
func (s *Session) FrameBytes(prefix []byte) (int, error) {
	n, err := FrameBytes(prefix)
	if err != nil {
		return 0, s.counters.refuse(ErrLength)
	}
	return n, nil
}

// OpenHead checks a whole frame (FrameBytes long, or from a Splitter) and
// returns what its header says. The tag is checked before anything else is
// read. Afterwards PayloadBytes is at most Config.MaxPayloadBytes, and
// PayloadWireBytes follow, for a Digest or a Decryptor to check.
//
// On an error nothing has changed, and the connection should be closed. A frame may be
// genuine and new, but of an unknown code or with a payload over the bound. Then the Head
// comes with the error, Seq not 0. It can be answered before, by a Head with Reply and
// Refused set and the Reason as Status. Other errors come with a Head of zeros.
func (s *Session) OpenHead(frame []byte) (Head, error) {
	if n, err := FrameBytes(frame); err != nil || n != len(frame) {
		return Head{}, s.counters.refuse(ErrLength)
	}
	if !s.in.genuine(frame) {
		return Head{}, s.counters.refuse(ErrMAC)
	}
	header := frame[LengthBytes : len(frame)-TrailerBytes]
	if reason := s.check(header); reason != 0 {
		return Head{}, s.counters.refuse(reason)
	}
	head := getHead(header)
	if reason := s.unserved(&head); reason != 0 {
		return head, s.counters.refuse(reason)
	}
	s.window.mark(head.Seq)
	s.counters.accept()
	return head, nil
}

// unserved looks at what a peer that means well can get wrong.
func (s *Session) unserved(head *Head) Reason {
	switch {
	case !s.codes.Has(head.Code):
		return ErrCode
	case uint64(head.PayloadBytes) > uint64(s.maxPayload):
		return ErrLength
	}
	return 0
}

// check looks at a genuine header; 0 means that it is acceptable.
func (s *Session) check(b []byte) Reason {
	seq := binary.LittleEndian.Uint64(b[16:])
	switch {
	case b[0] != Version:
		return ErrVersion
	case kind(b[1]) != kindMessage:
		return ErrKind
	case b[3]&flagFromServer == directionOf(s.role):
		return ErrDirection
	case binary.LittleEndian.Uint32(b[4:]) != s.keyID:
		return ErrKeyID
	case binary.LittleEndian.Uint64(b[8:]) != s.id:
		return ErrSession
	case Protection(b[2]) != s.protection:
		return ErrProtection
	case s.window.check(seq) != nil:
		return ErrReplay
	case s.ordered && seq != s.window.highest+1:
		return ErrGap
	case b[3]&^knownFlags != 0, b[41] != 0, !s.mayLeave(b):
		return ErrField
	}
	return 0
}

// mayLeave reports whether a genuine header leaves out of its digest what this session allows: nothing, or under
// Config.Apart and ProtectDigest an end of the payload.
func (s *Session) mayLeave(b []byte) bool {
	apart, total := binary.LittleEndian.Uint32(b[44:]), binary.LittleEndian.Uint64(b[32:])
	return apart == 0 || s.apart && s.protection == ProtectDigest && uint64(apart) <= total
}

// PayloadWireBytes is how many bytes follow the frame of head.
func (s *Session) PayloadWireBytes(head *Head) int64 {
	if s.protection == ProtectEncrypt {
		return EncryptedBytes(head.PayloadBytes)
	}
	return head.PayloadBytes
}
