package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// Handshake is what the two ends of a connection tell each other to make it. It states
// the sender's whole state: the next one makes good a lost one, and one that comes twice
// or late changes nothing.
type Handshake struct {
	// Epoch is the sender's life: it grows when the process starts anew.
	Epoch uint64
	// Gen numbers the sender's endpoints towards this peer: it grows with each
	// one made, and with each one retired.
	Gen uint64
	// SeenEpoch and SeenGen are the newest that the sender has of the receiver.
	SeenEpoch, SeenGen uint64
	// Ready: the sender's endpoint is connected to the one it has seen.
	Ready bool
	// Asks: the sender would like to have the receiver's own handshake.
	Asks bool
	// Address is that of the sender's endpoint; empty: there is none now.
	Address []byte
}

const (
	handshakeVersion = 1
	flagReady        = 1
	flagAsks         = 2
	handshakeFixed   = 36
	// MaxHandshakeBytes bounds an encoded handshake.
	MaxHandshakeBytes = handshakeFixed + transport.MaxAddressBytes
)

// ErrHandshake means that bytes are no handshake.
var ErrHandshake = errors.New("bad handshake")

// Append encodes a handshake, little-endian: version (1 byte), flags (1: ready,
// asks), length of the address (2), epoch, gen, seen epoch, seen gen (8 each), address.
func (n *Handshake) Append(b []byte) []byte {
	flags := byte(0)
	if n.Ready {
		flags |= flagReady
	}
	if n.Asks {
		flags |= flagAsks
	}
	b = append(b, handshakeVersion, flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(n.Address)))
	for _, v := range [...]uint64{n.Epoch, n.Gen, n.SeenEpoch, n.SeenGen} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, n.Address...)
}

// ParseHandshake decodes a handshake. The address aliases b.
func ParseHandshake(b []byte) (n Handshake, err error) {
	if len(b) < handshakeFixed || b[0] != handshakeVersion || b[1] > flagReady|flagAsks {
		return n, fmt.Errorf("%w: %d bytes", ErrHandshake, len(b))
	}
	if size := int(binary.LittleEndian.Uint16(b[2:])); size != len(b)-handshakeFixed || size > transport.MaxAddressBytes {
		return n, fmt.Errorf("%w: an address of %d bytes in %d", ErrHandshake, size, len(b))
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[4+8*i:]) }
	n = Handshake{Epoch: word(0), Gen: word(1), SeenEpoch: word(2), SeenGen: word(3), Ready: b[1]&flagReady != 0, Asks: b[1]&flagAsks != 0, Address: b[handshakeFixed:]}
	return n, nil
}
