package shmem

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/moewire/moewire/core/internal/sys"
)

const nonceBytes = 16

type nonce [nonceBytes]byte

// address is what Endpoint.Local holds: where the transport listens, and which
// of its endpoints is meant.
type address struct {
	listener nonce
	endpoint nonce
	slot     uint32
}

const (
	addressMagic = "mwm1"
	addressBytes = 4 + 2*nonceBytes + 4 + 4
)

func (a address) encode() []byte {
	b := append([]byte(addressMagic), a.listener[:]...)
	b = append(b, a.endpoint[:]...)
	b = binary.LittleEndian.AppendUint32(b, a.slot)
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

func decodeAddress(b []byte) (a address, err error) {
	if len(b) != addressBytes {
		return a, fmt.Errorf("remote has %d bytes, not %d", len(b), addressBytes)
	}
	sum := binary.LittleEndian.Uint32(b[addressBytes-4:])
	if string(b[:4]) != addressMagic || crc32.ChecksumIEEE(b[:addressBytes-4]) != sum {
		return a, errors.New("remote is no address of this carrier, or garbled")
	}
	b = b[4:]
	b = b[copy(a.listener[:], b):]
	b = b[copy(a.endpoint[:], b):]
	if a.slot = binary.LittleEndian.Uint32(b); a.slot >= MaxEndpoints {
		return a, fmt.Errorf("remote names endpoint %d, less than %d is allowed", a.slot, MaxEndpoints)
	}
	return a, nil
}

// socketName is the abstract name of a transport's listener.
func socketName(n nonce) string { return "moewire-shmem-" + hex.EncodeToString(n[:]) }

// Messages of a connection between two endpoints, all of one length.
type messageKind uint8

const (
	kindHello   messageKind = iota + 1 // of the side that dials; with the descriptors of bell, table and lane
	kindWelcome                        // the answer; the same
	kindAsk                            // for a memory
	kindMemory                         // the answer; with its descriptor, or without if there is no such memory
)

const (
	messageVersion = 1
	messageBytes   = 4 + 2*nonceBytes + 4 + 8
	numHelloFDs    = 3
)

type message struct {
	kind     messageKind
	from, to nonce  // of hello and welcome: endpoints
	slot     uint32 // of hello and welcome: the sender's endpoint
	memory   uint64 // of the others
}

func (m *message) encode() []byte {
	b := append([]byte{'m', 'w', messageVersion, byte(m.kind)}, m.from[:]...)
	b = append(b, m.to[:]...)
	b = binary.LittleEndian.AppendUint32(b, m.slot)
	return binary.LittleEndian.AppendUint64(b, m.memory)
}

func decodeMessage(b []byte) (m message, err error) {
	if len(b) != messageBytes || !bytes.Equal(b[:3], []byte{'m', 'w', messageVersion}) {
		return m, fmt.Errorf("message of %d bytes that is not of version %d", len(b), messageVersion)
	}
	m.kind = messageKind(b[3])
	b = b[4:]
	b = b[copy(m.from[:], b):]
	b = b[copy(m.to[:], b):]
	m.slot, m.memory = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[4:])
	if m.kind < kindHello || m.kind > kindMemory || m.slot >= MaxEndpoints {
		return m, fmt.Errorf("message of kind %d about endpoint %d", m.kind, m.slot)
	}
	return m, nil
}

func send(conn *sys.FD, m message, fds ...*sys.FD) error {
	return sys.Send(conn, m.encode(), fds...)
}

var errGone = errors.New("the peer is gone")

// receive takes one message: sys.ErrAgain when there is none, errGone at the
// end of the connection.
func receive(conn *sys.FD) (m message, fds []*sys.FD, err error) {
	var buf [messageBytes]byte
	n, fds, err := sys.Receive(conn, buf[:], numHelloFDs)
	switch {
	case errors.Is(err, sys.ErrAgain) || errors.Is(err, sys.ErrTooLarge):
		return m, nil, err
	case err != nil:
		return m, nil, fmt.Errorf("%w: %w", errGone, err)
	case n == 0 && len(fds) == 0:
		return m, nil, errGone
	}
	if m, err = decodeMessage(buf[:n]); err != nil {
		sys.CloseAll(fds...)
		return m, nil, err
	}
	return m, fds, nil
}
