package shm

import (
	"encoding/binary"
	"errors"
)

// kind is what a message on a connection between two ranks says.
type kind uint8

const (
	// kindHello carries the sender's descriptors: both sides send one.
	kindHello kind = 1 + iota
	// kindReady: the sender has everything from every rank.
	kindReady
	// kindAbort: the sender gave up; the reason (domain.PackReason) is the text.
	kindAbort
	// kindShutdown: the sender has closed its domain and is not dead.
	kindShutdown
)

const (
	messageMagic   = "MWHI"
	messageVersion = 1
	messageBytes   = 44
	maxTextBytes   = 400

	// flagKeep: the sender notices the receiver's death only by the end of
	// this connection, so it must stay open.
	flagKeep = 1
)

// message is one packet, little-endian: magic, version (2 bytes), kind,
// flags, rank (4 bytes), nonce of the receiver, nonce of the sender, text.
// The receiver's nonce shows that the sender has its metadata.
type message struct {
	kind     kind
	flags    uint8
	rank     int
	to, from [nonceBytes]byte
	text     string
}

func (m *message) marshal() []byte {
	b := make([]byte, 0, messageBytes+len(m.text))
	b = append(b, messageMagic...)
	b = binary.LittleEndian.AppendUint16(b, messageVersion)
	b = append(b, byte(m.kind), m.flags)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.rank))
	b = append(append(b, m.to[:]...), m.from[:]...)
	return append(b, m.text[:min(len(m.text), maxTextBytes)]...)
}

func parseMessage(b []byte) (message, error) {
	switch {
	case len(b) < messageBytes || string(b[:4]) != messageMagic:
		return message{}, errors.New("not a moewire message")
	case binary.LittleEndian.Uint16(b[4:]) != messageVersion:
		return message{}, errors.New("message of another version")
	}
	return message{
		kind:  kind(b[6]),
		flags: b[7],
		rank:  int(binary.LittleEndian.Uint32(b[8:])),
		to:    [nonceBytes]byte(b[12:]),
		from:  [nonceBytes]byte(b[28:]),
		text:  string(b[messageBytes:]),
	}, nil
}
