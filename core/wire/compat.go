package wire

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// CompatVersion is the version of compat frames.
const CompatVersion = 1

// Sizes of compat frames.
const (
	// CompatHeadBytes is their header.
	CompatHeadBytes = 16
	// CompatFrameBytes is the whole frame, its length field included.
	CompatFrameBytes = LengthBytes + CompatHeadBytes + TrailerBytes
)

// CompatHead is what a compat header says.
type CompatHead struct {
	Code         uint8
	Reply        bool
	PayloadBytes uint32
	Request      uint64
}

// Compat signs and opens single frames with a shared key: the header and the time, and
// nothing else. Its limits: the payload may be altered unnoticed. A frame may be
// sent again for as long as its time is accepted (two minutes, if it was dated a minute
// ahead). A frame may be turned back to the process that made it, or to another process
// with the same key. Use a Session where both sides can. The keys of the two formats are
// unrelated, though they come from the same ring: no compat frame is ever accepted by a
// Session.
//
// For one goroutine at a time; allocates nothing in steady state.
type Compat struct {
	sign     *signer
	codes    *CodeSet
	max      int64
	counters *Counters
	now      func() time.Time
}

// NewCompat uses the ring's current key, and of config Keys, Codes,
// MaxPayloadBytes, Counters and Now. It does not follow a Reload.
func NewCompat(config Config) (*Compat, error) {
	if config.Keys == nil {
		return nil, errors.New("wire: Config.Keys is nil; there is no mode without keys")
	}
	if config.MaxPayloadBytes <= 0 {
		return nil, errors.New("wire: Config.MaxPayloadBytes is not positive")
	}
	_, secret := config.Keys.currentKey()
	return &Compat{
		sign: newSigner(secret[:]), codes: config.Codes, max: config.MaxPayloadBytes,
		counters: config.Counters, now: config.Now,
	}, nil
}

// Seal appends a frame to dst. ErrLength or ErrCode when the head is not one
// that Open would accept; dst is as it was then.
func (c *Compat) Seal(dst []byte, head CompatHead) ([]byte, error) {
	switch {
	case int64(head.PayloadBytes) > c.max:
		return dst, ErrLength
	case !c.codes.Has(head.Code):
		return dst, ErrCode
	}
	dst = slices.Grow(dst, CompatFrameBytes)
	frame := dst[len(dst) : len(dst)+CompatFrameBytes]
	setLength(frame)
	b := frame[LengthBytes:]
	b[0], b[1], b[2], b[3] = CompatVersion, 0, head.Code, 0
	if head.Reply {
		b[1] = 1
	}
	binary.LittleEndian.PutUint32(b[4:], head.PayloadBytes)
	binary.LittleEndian.PutUint64(b[8:], head.Request)
	c.sign.sign(frame, clock(c.now))
	return dst[:len(dst)+CompatFrameBytes], nil
}

// Open checks a whole frame and returns what its header says. The payload that
// follows is not protected.
func (c *Compat) Open(frame []byte) (CompatHead, error) {
	if len(frame) != CompatFrameBytes || binary.LittleEndian.Uint32(frame) != CompatFrameBytes-LengthBytes {
		return CompatHead{}, c.counters.refuse(ErrLength)
	}
	if !c.sign.genuine(frame) {
		return CompatHead{}, c.counters.refuse(ErrMAC)
	}
	b := frame[LengthBytes:]
	head := CompatHead{
		Code: b[2], Reply: b[1] == 1,
		PayloadBytes: binary.LittleEndian.Uint32(b[4:]), Request: binary.LittleEndian.Uint64(b[8:]),
	}
	if reason := c.judge(b, signedAt(frame), head); reason != 0 {
		return CompatHead{}, c.counters.refuse(reason)
	}
	c.counters.accept()
	return head, nil
}

func (c *Compat) judge(b []byte, signed uint64, head CompatHead) Reason {
	switch {
	case b[0] != CompatVersion:
		return ErrVersion
	case !fresh(signed, uint64(clock(c.now))):
		return ErrTime
	case b[1] > 1 || b[3] != 0:
		return ErrField
	case !c.codes.Has(head.Code):
		return ErrCode
	case int64(head.PayloadBytes) > c.max:
		return ErrLength
	}
	return 0
}
