package cudaipc

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libcuda"
	"github.com/moewire/moewire/core/transport"
)

// A card is little-endian:
//
//	  0   4  magic "MWGM"
//	  4   2  format version
//	  6   2  ways, added up: 1 descriptor, 2 IPC handle, 4 fabric handle
//	  8   4  rank
//	 12   4  number of ranks
//	 16   8  bytes of the memory
//	 24  16  nonce
//	 40  16  the device's UUID
//	 56  16  the process
//	 72  64  IPC or fabric handle, or zeros
//	136   2  length of the socket's name; 0 with a fabric handle alone
//	138  94  that name, without the leading zero; padded
//	232   8  the first 8 bytes of the SHA-256 of everything before
//
// In the slab it lies behind one word, its length, which is stored last.
const (
	cardMagic   = "MWGM"
	cardVersion = 3
	cardBytes   = 240
	nonceBytes  = 16
	maxName     = 94
	cardOff     = 8
	slabBytes   = 1 << 10
	cardSlab    = 0
)

// ways are those that a card names.
type ways uint16

const (
	byFD     ways = 1
	byIPC    ways = 2
	byFabric ways = 4
)

func (w ways) valid() bool {
	return w == byFD || w == byIPC || w == byFabric || w == byFD|byFabric
}

// byDoor: what is asked for at the owner's socket.
func (w ways) byDoor() bool { return w != byFabric }

type card struct {
	ways           ways
	rank, numRanks int
	numBytes       uint64
	nonce, process [nonceBytes]byte
	device         libcuda.UUID
	handle         [libcuda.IPCHandleBytes]byte // of either kind: both are as long
	socket         string
}

func (c *card) marshal() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, cardBytes), cardMagic...)
	b = le.AppendUint16(b, cardVersion)
	b = le.AppendUint16(b, uint16(c.ways))
	b = le.AppendUint32(b, uint32(c.rank))
	b = le.AppendUint32(b, uint32(c.numRanks))
	b = le.AppendUint64(b, c.numBytes)
	b = append(append(append(b, c.nonce[:]...), c.device[:]...), c.process[:]...)
	b = append(b, c.handle[:]...)
	b = le.AppendUint16(b, uint16(len(c.socket)))
	b = append(append(b, c.socket...), make([]byte, maxName-len(c.socket))...)
	sum := sha256.Sum256(b)
	return append(b, sum[:8]...)
}

var errForm = errors.New("its card cannot be read")

// parseCard reads what a rank has laid out. Every error wraps
// transport.ErrMetadata.
func parseCard(b []byte, rank, numRanks int) (*card, error) {
	le := binary.LittleEndian
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w: %s", transport.ErrMetadata, errForm, fmt.Sprintf(format, args...))
	}
	switch {
	case len(b) != cardBytes:
		return nil, bad("%d bytes, expected %d", len(b), cardBytes)
	case string(b[:4]) != cardMagic:
		return nil, bad("it does not begin with %q", cardMagic)
	case le.Uint16(b[4:]) != cardVersion:
		return nil, bad("format version %d, this library reads version %d", le.Uint16(b[4:]), cardVersion)
	}
	if sum := sha256.Sum256(b[:cardBytes-8]); !bytes.Equal(sum[:8], b[cardBytes-8:]) {
		return nil, bad("checksum differs")
	}
	c := &card{
		ways: ways(le.Uint16(b[6:])), rank: int(le.Uint32(b[8:])), numRanks: int(le.Uint32(b[12:])),
		numBytes: le.Uint64(b[16:]), nonce: [nonceBytes]byte(b[24:]), device: libcuda.UUID(b[40:]),
		process: [nonceBytes]byte(b[56:]), handle: [libcuda.IPCHandleBytes]byte(b[72:]),
	}
	name := int(le.Uint16(b[136:]))
	switch {
	case !c.ways.valid():
		return nil, bad("ways %d", c.ways)
	case c.rank != rank || c.numRanks != numRanks:
		return nil, bad("it is of rank %d of %d", c.rank, c.numRanks)
	case name > maxName || c.ways.byDoor() != (name > 0):
		return nil, bad("socket's name of %d bytes", name)
	}
	c.socket = string(b[138 : 138+name])
	return c, nil
}
