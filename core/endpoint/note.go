package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/transport"
)

// Note is what the two ends of a connection tell each other to make it. It is
// a statement of the sender's whole state, so one that is lost is made good by
// the next, and one that comes twice or late changes nothing.
type Note struct {
	// Epoch is the sender's life: it grows when the process starts anew.
	Epoch uint64
	// Gen numbers the sender's endpoints towards this peer: it grows with each
	// one made, and with each one retired.
	Gen uint64
	// SeenEpoch and SeenGen are the newest that the sender has of the receiver.
	SeenEpoch, SeenGen uint64
	// Ready: the sender's endpoint is connected to the one it has seen.
	Ready bool
	// Asks: the sender would like to have the receiver's own note.
	Asks bool
	// Address is that of the sender's endpoint; empty: there is none now.
	Address []byte
}

const (
	noteVersion = 1
	flagReady   = 1
	flagAsks    = 2
	noteFixed   = 36
	// MaxNoteBytes bounds an encoded note.
	MaxNoteBytes = noteFixed + transport.MaxAddressBytes
)

// ErrNote means that bytes are no note.
var ErrNote = errors.New("bad note")

// Append encodes a note, little-endian: version (1 byte), flags (1: ready,
// asks), length of the address (2), epoch, gen, seen epoch, seen gen (8 each), address.
func (n *Note) Append(b []byte) []byte {
	flags := byte(0)
	if n.Ready {
		flags |= flagReady
	}
	if n.Asks {
		flags |= flagAsks
	}
	b = append(b, noteVersion, flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(n.Address)))
	for _, v := range [...]uint64{n.Epoch, n.Gen, n.SeenEpoch, n.SeenGen} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return append(b, n.Address...)
}

// ParseNote decodes a note. The address aliases b.
func ParseNote(b []byte) (n Note, err error) {
	if len(b) < noteFixed || b[0] != noteVersion || b[1] > flagReady|flagAsks {
		return n, fmt.Errorf("%w: %d bytes", ErrNote, len(b))
	}
	if size := int(binary.LittleEndian.Uint16(b[2:])); size != len(b)-noteFixed || size > transport.MaxAddressBytes {
		return n, fmt.Errorf("%w: an address of %d bytes in %d", ErrNote, size, len(b))
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[4+8*i:]) }
	n = Note{Epoch: word(0), Gen: word(1), SeenEpoch: word(2), SeenGen: word(3), Ready: b[1]&flagReady != 0, Asks: b[1]&flagAsks != 0, Address: b[noteFixed:]}
	return n, nil
}
