package message

import (
	"encoding/binary"
	"errors"

	"github.com/moewire/moewire/core/store/tag"
)

// ErrMalformed: these bytes are not what they should be. No error here says more, so that
// nothing is allocated for bytes that are not trusted.
var ErrMalformed = errors.New("store: malformed message")

// RequestBytes is the length of a Request in the header of a message.
const RequestBytes = 56

// Request is what the header of every request says. What a code does not use is 0.
type Request struct {
	Namespace  uint32  // as Opened has said
	NumKeys    uint16  // in the table of the payload; release: handles
	Flags      uint16  // FlagPlace
	DeadlineUs uint32  // from the arrival on; 0: the server's own
	Bytes      uint32  // put, allocate: of the block; read: how many; list: how many keys at most
	Handle     uint64  // write, commit, abort, read; pin: for how many µs
	Offset     uint64  // write, read: in the block; put with FlagPlace: of the block in the bounce buffer
	Tag        tag.Tag // put, allocate: of the block; bad: that the server has said
	KeyBytes   uint16  // put, allocate: at the beginning of the payload; list: of the prefix
	Parent     uint16  // put, allocate: bytes of the parent's key, behind the key; list: of the cursor
}

// Encode writes a request to the beginning of b, RequestBytes long, and returns it.
func (r *Request) Encode(b []byte) []byte {
	b = b[:RequestBytes]
	binary.LittleEndian.PutUint32(b, r.Namespace)
	binary.LittleEndian.PutUint16(b[4:], r.NumKeys)
	binary.LittleEndian.PutUint16(b[6:], r.Flags)
	binary.LittleEndian.PutUint32(b[8:], r.DeadlineUs)
	binary.LittleEndian.PutUint32(b[12:], r.Bytes)
	binary.LittleEndian.PutUint64(b[16:], r.Handle)
	binary.LittleEndian.PutUint64(b[24:], r.Offset)
	copy(b[32:48], r.Tag[:])
	binary.LittleEndian.PutUint16(b[48:], r.KeyBytes)
	binary.LittleEndian.PutUint16(b[50:], r.Parent)
	clear(b[52:56])
	return b
}

// Decode reads the request of a code with a payload of that many bytes, and checks every
// length in it: afterwards the payload is as long as the request says, and within bounds.
func (r *Request) Decode(code Code, extra []byte, payload int64) error {
	if len(extra) != RequestBytes || binary.LittleEndian.Uint32(extra[52:]) != 0 {
		return ErrMalformed
	}
	*r = Request{
		Namespace:  binary.LittleEndian.Uint32(extra),
		NumKeys:    binary.LittleEndian.Uint16(extra[4:]),
		Flags:      binary.LittleEndian.Uint16(extra[6:]),
		DeadlineUs: binary.LittleEndian.Uint32(extra[8:]),
		Bytes:      binary.LittleEndian.Uint32(extra[12:]),
		Handle:     binary.LittleEndian.Uint64(extra[16:]),
		Offset:     binary.LittleEndian.Uint64(extra[24:]),
		Tag:        tag.Tag(extra[32:48]),
		KeyBytes:   binary.LittleEndian.Uint16(extra[48:]),
		Parent:     binary.LittleEndian.Uint16(extra[50:]),
	}
	if r.Flags&^flagsOf(code) != 0 || !r.fits(code, payload) {
		return ErrMalformed
	}
	return nil
}

// flagsOf are those that requests of a code may have.
func flagsOf(code Code) uint16 {
	if code == Get || code == Lookup || code == Put {
		return FlagPlace
	}
	return 0
}

// fits compares the payload's length with what the request says.
func (r *Request) fits(code Code, payload int64) bool {
	names := int64(r.KeyBytes) + int64(r.Parent)
	switch code {
	case Open:
		return payload <= MaxNamespaceBytes
	case Put:
		if r.Flags&FlagPlace != 0 {
			return r.named() && r.bounced() && payload == names
		}
		return r.named() && r.Bytes <= MaxBlockBytes && payload == names+int64(r.Bytes)
	case Allocate:
		return r.named() && payload == names
	case List:
		return r.KeyBytes <= MaxKeyBytes && r.Parent <= MaxCursorBytes && payload == names
	case Bad:
		return r.NumKeys == 1 && payload > 2 && payload <= 2+MaxKeyBytes
	case Get, Delete, Exists, Touch, Pin, Lookup:
		n := int64(r.NumKeys)
		return n > 0 && n <= MaxKeys && payload > 2*n && payload <= n*(2+MaxKeyBytes)
	case Release:
		return r.NumKeys > 0 && r.NumKeys <= MaxKeys && payload == 8*int64(r.NumKeys)
	case Write:
		return payload <= MaxBlockBytes && payload == int64(r.Bytes)
	case Read:
		return payload == 0 && r.Bytes <= PartBytes
	case Commit, Abort, Stats, Flush:
		return payload == 0
	case Share:
		return payload == NameBytes
	}
	return false
}

// bounced reports whether a block may lie in a bounce buffer.
func (r *Request) bounced() bool {
	return r.Bytes <= MaxBounceBytes && r.Offset <= MaxBounceBytes-uint64(r.Bytes)
}

// named reports whether there is a key, and perhaps a parent.
func (r *Request) named() bool {
	return r.KeyBytes > 0 && r.KeyBytes <= MaxKeyBytes && r.Parent <= MaxKeyBytes
}

// AppendKey appends a key to a table.
func AppendKey(dst, key []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(key)))
	return append(dst, key...)
}

// Keys appends the n keys of a table to dst: parts of the payload's memory. The table must
// end where the payload does.
func Keys(dst [][]byte, payload []byte, n int) ([][]byte, error) {
	for range n {
		if len(payload) < 2 {
			return dst, ErrMalformed
		}
		size := int(binary.LittleEndian.Uint16(payload))
		payload = payload[2:]
		if size == 0 || size > MaxKeyBytes || size > len(payload) {
			return dst, ErrMalformed
		}
		dst = append(dst, payload[:size:size])
		payload = payload[size:]
	}
	if len(payload) > 0 {
		return dst, ErrMalformed
	}
	return dst, nil
}

// CheckKey says whether these bytes may be a key.
func CheckKey(key []byte) bool { return len(key) > 0 && len(key) <= MaxKeyBytes }

// AppendHandle appends a handle to the table of a release.
func AppendHandle(dst []byte, handle uint64) []byte {
	return binary.LittleEndian.AppendUint64(dst, handle)
}

// Handle is handle i of a table.
func Handle(payload []byte, i int) uint64 { return binary.LittleEndian.Uint64(payload[8*i:]) }
