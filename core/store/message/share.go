package message

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// FlagPlace, in the flags of a get or a lookup, asks for where blocks lie, for a client that shares the server's
// arena. The reply to such a get has no blocks and comes in one message: a table of entries as that of lookup, with
// the place instead of the handle. Such a lookup's entries have the place behind the handle.
//
// In those of a put it says that the block is not in the payload, but at Offset of the client's bounce buffer.
const FlagPlace = 1

// MaxBounceBytes is how long a client's bounce buffer may be.
const MaxBounceBytes = 16 << 20

// PlacedBytes is the length of an entry of a lookup with its place.
const PlacedBytes = LookupBytes + 8

// NameBytes is the length of what a client says in share: the name of a socket at which it waits for the descriptor of
// the arena.
const NameBytes = 16

// ShareSecret is the label of the session's secret with which both sides make their proofs at that socket.
const ShareSecret = "moewire store arena"

// Sides of a proof.
const (
	ProofServer byte = 1
	ProofClient byte = 2
)

// ProofBytes is the length of a proof.
const ProofBytes = sha256.Size

// ShareProof is what one side says at the socket of a name, to be known as that of the session. where names the boot of
// the host, and the network namespace, of the socket.
func ShareProof(secret [32]byte, side byte, name [NameBytes]byte, where string) [ProofBytes]byte {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte{side})
	mac.Write(name[:])
	mac.Write([]byte(where))
	return [ProofBytes]byte(mac.Sum(nil))
}

// SharedBytes is the length of a Shared.
const SharedBytes = 16

// maxArenaBytes bounds what a server may say: the segments of the largest store.
const maxArenaBytes = 1 << 44

// Shared is the reply to share, once the descriptor was sent.
type Shared struct {
	ArenaBytes uint64 // blocks lie below
	HoldUs     uint64 // how long a handle lives at most
}

// Append appends it.
func (s *Shared) Append(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, s.ArenaBytes), s.HoldUs)
}

// Decode reads it, and checks its bounds.
func (s *Shared) Decode(b []byte) error {
	if len(b) != SharedBytes {
		return ErrMalformed
	}
	*s = Shared{ArenaBytes: binary.LittleEndian.Uint64(b), HoldUs: binary.LittleEndian.Uint64(b[8:])}
	if s.ArenaBytes == 0 || s.ArenaBytes > maxArenaBytes {
		return ErrMalformed
	}
	return nil
}

// AppendPlaced appends an entry of a lookup with its place.
func (e *Entry) AppendPlaced(dst []byte, place uint64) []byte {
	return binary.LittleEndian.AppendUint64(e.AppendLookup(dst), place)
}

// DecodePlaced reads an entry of PlacedBytes, or of LookupBytes with a place instead of the handle. A block lies
// wholly within the arena.
func (e *Entry) DecodePlaced(b []byte, arenaBytes uint64) (place uint64, err error) {
	if len(b) != LookupBytes && len(b) != PlacedBytes {
		return 0, ErrMalformed
	}
	head := len(b) - 8
	if err := e.Decode(b[:head]); err != nil {
		return 0, err
	}
	place = binary.LittleEndian.Uint64(b[head:])
	inside := place <= arenaBytes && uint64(e.Bytes) <= arenaBytes-place
	if !inside || e.Status != OK && place != 0 {
		return 0, ErrMalformed
	}
	return place, nil
}
