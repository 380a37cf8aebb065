package message

import (
	"encoding/binary"

	"github.com/moewire/moewire/core/store/tag"
)

// Hello is what both sides say in the handshake.
func Hello() []byte { return []byte{'M', 'W', 'S', 'T', Version, 0} }

// IsHello reports whether the other side speaks this format.
func IsHello(blob []byte) bool { return string(blob) == string(Hello()) }

// TagSecret is the label of the session's secret that masks TagKey.
const TagSecret = "moewire block tags"

// OpenedBytes is the length of an Opened.
const OpenedBytes = 80

// Opened is the reply to open.
type Opened struct {
	Namespace  uint32
	NumKeys    uint32   // per request
	BatchBytes uint64   // of the blocks of a batch
	BlockBytes uint64   // of the longest block
	Contexts   uint32   // requests at a time
	Storage    uint8    // 1 memory, 2 file, 3 direct
	Boot       [16]byte // random, another one after every start of the server
	TagKey     tag.Key  // masked by the session's TagSecret
}

// Encode writes it to the beginning of b, OpenedBytes long, and returns it.
func (o *Opened) Encode(b []byte) []byte {
	b = b[:OpenedBytes]
	binary.LittleEndian.PutUint32(b, o.Namespace)
	binary.LittleEndian.PutUint32(b[4:], o.NumKeys)
	binary.LittleEndian.PutUint64(b[8:], o.BatchBytes)
	binary.LittleEndian.PutUint64(b[16:], o.BlockBytes)
	binary.LittleEndian.PutUint32(b[24:], o.Contexts)
	b[28], b[29], b[30], b[31] = o.Storage, 0, 0, 0
	copy(b[32:], o.Boot[:])
	copy(b[48:], o.TagKey[:])
	return b
}

// Decode reads it. What it grants is at least one of everything, and never more than the
// bounds of this package.
func (o *Opened) Decode(b []byte) error {
	if len(b) != OpenedBytes || b[29]|b[30]|b[31] != 0 {
		return ErrMalformed
	}
	*o = Opened{
		Namespace:  binary.LittleEndian.Uint32(b),
		NumKeys:    binary.LittleEndian.Uint32(b[4:]),
		BatchBytes: binary.LittleEndian.Uint64(b[8:]),
		BlockBytes: binary.LittleEndian.Uint64(b[16:]),
		Contexts:   binary.LittleEndian.Uint32(b[24:]),
		Storage:    b[28],
		Boot:       [16]byte(b[32:48]),
		TagKey:     tag.Key(b[48:80]),
	}
	ok := o.NumKeys > 0 && o.NumKeys <= MaxKeys && o.BatchBytes > 0 && o.BatchBytes <= MaxBatchBytes &&
		o.BlockBytes > 0 && o.BlockBytes <= MaxBlockBytes && o.Contexts > 0 && o.Contexts <= 1<<16
	if !ok {
		return ErrMalformed
	}
	return nil
}

// PartExtraBytes is the length of a Part in the header of a message.
const PartExtraBytes = 16

// Part is what the header of a part of a get's reply says: it answers the keys [First,
// First + NumKeys). Its payload is a table of Entry and then the bytes of the hits, in
// order. A block longer than PartBytes comes in parts of its own, PartBytes each but the
// last one, with one key.
type Part struct {
	First, NumKeys uint16
	Last           bool   // nothing of this reply follows
	Offset         uint32 // of the bytes in their block; 0 if there is more than one key
}

// Encode writes it to the beginning of b, PartExtraBytes long, and returns it.
func (p *Part) Encode(b []byte) []byte {
	b = b[:PartExtraBytes]
	clear(b)
	binary.LittleEndian.PutUint16(b, p.First)
	binary.LittleEndian.PutUint16(b[2:], p.NumKeys)
	if p.Last {
		b[4] = 1
	}
	binary.LittleEndian.PutUint32(b[8:], p.Offset)
	return b
}

// Decode reads it; the reply is to a request for that many keys.
func (p *Part) Decode(extra []byte, numKeys int) error {
	if len(extra) != PartExtraBytes || extra[4] > 1 || extra[5]|extra[6]|extra[7] != 0 ||
		binary.LittleEndian.Uint32(extra[12:]) != 0 {
		return ErrMalformed
	}
	*p = Part{
		First: binary.LittleEndian.Uint16(extra), NumKeys: binary.LittleEndian.Uint16(extra[2:]),
		Last: extra[4] == 1, Offset: binary.LittleEndian.Uint32(extra[8:]),
	}
	end := int(p.First) + int(p.NumKeys)
	ends := end == numKeys
	alone := p.Offset == 0 || p.NumKeys == 1 && p.Offset%PartBytes == 0
	if p.NumKeys == 0 || end > numKeys || !alone || p.Last && !ends {
		return ErrMalformed
	}
	return nil
}

// Data is how many bytes of an entry's block are in this part.
func (p *Part) Data(e *Entry) int {
	if e.Status != OK || e.Bytes <= p.Offset {
		return 0
	}
	return int(min(e.Bytes-p.Offset, PartBytes))
}

// EntryBytes is the length of an Entry; LookupBytes that of one with a handle.
const (
	EntryBytes  = 24
	LookupBytes = EntryBytes + 8
)

// Entry says of one key what there is.
type Entry struct {
	Status Status // OK or Miss
	Bytes  uint32
	Tag    tag.Tag
	Handle uint64 // lookup only
}

// Append appends an entry without its handle.
func (e *Entry) Append(dst []byte) []byte {
	dst = append(dst, byte(e.Status), 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, e.Bytes)
	return append(dst, e.Tag[:]...)
}

// AppendLookup appends an entry with its handle.
func (e *Entry) AppendLookup(dst []byte) []byte {
	return binary.LittleEndian.AppendUint64(e.Append(dst), e.Handle)
}

// Decode reads an entry of EntryBytes, or LookupBytes with a handle.
func (e *Entry) Decode(b []byte) error {
	if len(b) != EntryBytes && len(b) != LookupBytes {
		return ErrMalformed
	}
	*e = Entry{Status: Status(b[0]), Bytes: binary.LittleEndian.Uint32(b[4:]), Tag: tag.Tag(b[8:24])}
	if len(b) == LookupBytes {
		e.Handle = binary.LittleEndian.Uint64(b[24:])
	}
	hit := e.Status == OK && e.Bytes <= MaxBlockBytes
	miss := e.Status == Miss && *e == Entry{Status: Miss}
	if !hit && !miss || b[1]|b[2]|b[3] != 0 {
		return ErrMalformed
	}
	return nil
}

// FoundBytes is the length of what AppendFound makes of n answers.
func FoundBytes(n int) int { return 2 + (n+7)/8 }

// AppendFound appends the reply to exists and delete: a number (the consecutive hits, or
// those deleted) and a bit for each key.
func AppendFound(dst []byte, number int, found []bool) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(number))
	for i := 0; i < len(found); i += 8 {
		bits := byte(0)
		for j, yes := range found[i:min(i+8, len(found))] {
			if yes {
				bits |= 1 << j
			}
		}
		dst = append(dst, bits)
	}
	return dst
}

// Found reads what AppendFound has made, as many answers as found has room for.
func Found(b []byte, found []bool) (number int, err error) {
	n := len(found)
	if len(b) != FoundBytes(n) || n%8 > 0 && b[len(b)-1]>>(n%8) != 0 {
		return 0, ErrMalformed
	}
	for i := range found {
		found[i] = b[2+i/8]>>(i%8)&1 == 1
	}
	if number = int(binary.LittleEndian.Uint16(b)); number > n {
		return 0, ErrMalformed
	}
	return number, nil
}

// MaxCursorBytes bounds a cursor of a list: what the server wants to hear to go on.
const MaxCursorBytes = 1024

// AppendListed appends the reply to list: the cursor (of length 0 at the end) and a table.
func AppendListed(dst, cursor []byte, keys [][]byte) []byte {
	dst = AppendKey(dst, cursor)
	for _, k := range keys {
		dst = AppendKey(dst, k)
	}
	return dst
}

// Listed reads what AppendListed has made, of at most MaxKeys keys: parts of b's memory.
func Listed(dst [][]byte, b []byte) (keys [][]byte, cursor []byte, err error) {
	if len(b) < 2 {
		return dst, nil, ErrMalformed
	}
	n := int(binary.LittleEndian.Uint16(b))
	if n > MaxCursorBytes || n > len(b)-2 {
		return dst, nil, ErrMalformed
	}
	cursor, b = b[2:2+n:2+n], b[2+n:]
	keys = dst
	for i := 0; len(b) > 0; i++ {
		if i == MaxKeys || len(b) < 2 {
			return dst, nil, ErrMalformed
		}
		size := 2 + int(binary.LittleEndian.Uint16(b))
		if size > len(b) {
			return dst, nil, ErrMalformed
		}
		if keys, err = Keys(keys, b[:size], 1); err != nil {
			return dst, nil, err
		}
		b = b[size:]
	}
	return keys, cursor, nil
}
