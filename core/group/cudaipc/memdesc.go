package cudaipc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/internal/libcuda"
)

// A memory descriptor is little-endian:
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
	memDescMagic   = "MWGM"
	memDescVersion = 3
	memDescBytes   = 240
	nonceBytes     = 16
	maxName        = 94
	memDescOff     = 8
	slabBytes      = 1 << 10
	memDescSlab    = 0
)

// ways are those that a memory descriptor names.
type ways uint16

const (
	byFD     ways = 1
	byIPC    ways = 2
	byFabric ways = 4
)

func (w ways) valid() bool {
	return w == byFD || w == byIPC || w == byFabric || w == byFD|byFabric
}

// bySocket: what is asked for at the owner's socket.
func (w ways) bySocket() bool { return w != byFabric }

type memDesc struct {
	ways           ways
	rank, numRanks int
	numBytes       uint64
	nonce, process [nonceBytes]byte
	device         libcuda.UUID
	handle         [libcuda.IPCHandleBytes]byte // of either kind: both are as long
	socket         string
}

func (c *memDesc) marshal() []byte {
	le := binary.LittleEndian
	b := append(make([]byte, 0, memDescBytes), memDescMagic...)
	b = le.AppendUint16(b, memDescVersion)
	b = le.AppendUint16(b, uint16(c.ways))
	b = le.AppendUint32(b, uint32(c.rank))
	b = le.AppendUint32(b, uint32(c.numRanks))
	b = le.AppendUint64(b, c.numBytes)
	b = append(append(append(b, c.nonce[:]...), c.device[:]...), c.process[:]...)
	b = append(b, c.handle[:]...)
	b = le.AppendUint16(b, uint16(len(c.socket)))
	b = append(append(b, c.socket...), make([]byte, maxName-len(c.socket))...)
	return domain.AppendChecksum(b)
}

var errForm = errors.New("its memory descriptor cannot be read")

// parseMemDesc reads what a rank has laid out. Every error wraps
// domain.ErrMetadata.
func parseMemDesc(b []byte, rank, numRanks int) (*memDesc, error) {
	le := binary.LittleEndian
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w: %s", domain.ErrMetadata, errForm, fmt.Sprintf(format, args...))
	}
	switch {
	case len(b) != memDescBytes:
		return nil, bad("%d bytes, expected %d", len(b), memDescBytes)
	case string(b[:4]) != memDescMagic:
		return nil, bad("it does not begin with %q", memDescMagic)
	case le.Uint16(b[4:]) != memDescVersion:
		return nil, bad("format version %d, this library reads version %d", le.Uint16(b[4:]), memDescVersion)
	case !domain.HasChecksum(b):
		return nil, bad("checksum differs")
	}
	c := &memDesc{
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
	case name > maxName || c.ways.bySocket() != (name > 0):
		return nil, bad("socket's name of %d bytes", name)
	}
	c.socket = string(b[138 : 138+name])
	return c, nil
}
