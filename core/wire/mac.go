package wire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"

	"github.com/moewire/moewire/core/internal/gmac"
)

// Labels of what is derived from a shared key. No two uses share a key.
const (
	labelHandshake = "moewire 2 handshake"
	labelSession   = "moewire 2 session id"
	labelHeader    = "moewire 2 header from "
	labelPayload   = "moewire 2 payload from "
	labelExport    = "moewire 2 export"
	fromClient     = "client"
	fromServer     = "server"
	sessionIDBytes = 8
)

// derive is HKDF-SHA256 (RFC 5869) of a shared key.
func derive(secret *[KeyBytes]byte, salt []byte, info string, n int) []byte {
	out, err := hkdf.Key(sha256.New, secret[:], salt, info, n)
	if err != nil {
		panic(err) // n is a constant below 255*32
	}
	return out
}

// protect prepares for payloads, in both ways, so that whatever can be made of a
// session can be used; the keys serve its own protection only.
func (s *Session) protect(out, in []byte) {
	s.outPayload, s.inPayload = newAEAD(out), newAEAD(in)
	s.sealer, s.inDigest = newDigest(newGMAC(out), nil), newGMAC(in)
	clear(out) // the ciphers have copies of their own
	clear(in)
}

// newGMAC is AES-256-GMAC.
func newGMAC(key []byte) *gmac.MAC {
	mac, err := gmac.New(key)
	if err != nil {
		panic(err) // the key has KeyBytes bytes
	}
	return mac
}

// newAEAD is AES-256-GCM.
func newAEAD(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has KeyBytes bytes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // the block has 16 bytes
	}
	return aead
}

// signer makes and checks trailers with one key. It is for one goroutine at a
// time; after the first tag it allocates nothing.
type signer struct {
	mac hash.Hash
	sum [tagBytes]byte
}

// newSigner wipes the key, of which the hash has its own copy.
func newSigner(key []byte) *signer {
	defer clear(key)
	return &signer{mac: hmac.New(sha256.New, key)}
}

// sign fills in the trailer at the end of a frame that already has its length and header.
func (s *signer) sign(frame []byte, at int64) {
	end := len(frame) - TrailerBytes
	binary.LittleEndian.PutUint64(frame[end:], uint64(at))
	copy(frame[end+8:], s.tag(frame))
}

// genuine compares tags in constant time. The frame is at least a trailer long.
func (s *signer) genuine(frame []byte) bool {
	return hmac.Equal(s.tag(frame), frame[len(frame)-tagBytes:])
}

// tag is the HMAC of header and time.
func (s *signer) tag(frame []byte) []byte {
	s.mac.Reset()
	s.mac.Write(frame[LengthBytes : len(frame)-tagBytes])
	return s.mac.Sum(s.sum[:0])
}

// signedAt is the time in a frame's trailer, in ns since 1970.
func signedAt(frame []byte) uint64 {
	return binary.LittleEndian.Uint64(frame[len(frame)-TrailerBytes:])
}

// fresh reports whether two times are at most MaxSkew apart. Both are unsigned
// so that no value overflows.
func fresh(signed, now uint64) bool {
	if signed > now {
		return signed-now <= uint64(MaxSkew)
	}
	return now-signed <= uint64(MaxSkew)
}

func setLength(frame []byte) {
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-LengthBytes))
}

func clock(now func() time.Time) int64 {
	if now == nil {
		return time.Now().UnixNano()
	}
	return now().UnixNano()
}
