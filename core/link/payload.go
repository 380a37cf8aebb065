package link

import (
	"slices"

	"github.com/moewire/moewire/core/wire"
)

// payload is what follows the frames of a session, as its protection wants it:
// in clear with a digest in the frame, or encrypted. The zero value is of no
// session.
type payload struct {
	session *wire.Session
	digest  *wire.Digest    // one of the two is nil
	opener  *wire.Decryptor // and then there is a sealer
	sealer  *wire.Encryptor

	head    wire.Head // of the message that is coming
	bytes   []byte    // as far as they have come, or room for all of them
	missing int       // bytes of the stream
}

func newPayload(s *wire.Session) payload {
	if s.Protection() == wire.ProtectEncrypt {
		return payload{session: s, opener: s.NewDecryptor(), sealer: s.NewEncryptor()}
	}
	return payload{session: s, digest: s.NewDigest()}
}

// seal appends a message, frame and all.
func (p *payload) seal(out []byte, head *wire.Head, message []byte) ([]byte, error) {
	pieces := [][]byte{message}
	out, err := p.session.Seal(out, head, pieces...)
	if err != nil {
		return out, err
	}
	if p.sealer == nil {
		return append(out, message...), nil
	}
	p.sealer.Begin(head, pieces)
	return p.sealer.Next(slices.Grow(out, int(wire.EncryptedBytes(head.PayloadBytes)))), nil
}

// begin opens a frame. What it announces is bounded by the session.
func (p *payload) begin(frame []byte) (err error) {
	if p.head, err = p.session.OpenHead(frame); err != nil {
		return err
	}
	p.missing = int(p.session.PayloadWireBytes(&p.head))
	p.bytes = p.bytes[:0]
	if p.digest != nil {
		p.digest.Begin(&p.head)
		return nil
	}
	p.bytes = slices.Grow(p.bytes, int(p.head.PayloadBytes))[:p.head.PayloadBytes]
	return p.opener.Begin(&p.head, [][]byte{p.bytes})
}

// take is given what comes next and returns the rest.
func (p *payload) take(in []byte) (rest []byte, err error) {
	n := min(p.missing, len(in))
	p.missing -= n
	if p.digest == nil {
		return in[n:], p.opener.Write(in[:n])
	}
	p.digest.Write(in[:n])
	p.bytes = append(p.bytes, in[:n]...)
	return in[n:], nil
}

// check says whether all of it has come, as it was sent.
func (p *payload) check() error {
	if p.digest == nil {
		return p.opener.Check()
	}
	return p.digest.Check()
}
