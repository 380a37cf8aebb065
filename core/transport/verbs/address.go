package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/internal/libibverbs"
)

// address is what the peer's Connect needs to know of a queue pair. As bytes,
// all numbers little-endian:
//
//	 0  version, 1
//	 1  link layer of the port: 1 InfiniBand, 2 Ethernet
//	 2  MTU, as a code of the specification: 1 is 256 bytes, 5 is 4096
//	 3  reads that the device answers at the same time
//	 4  LID, two bytes
//	 6  bit 0: the port wants global routes; bit 1: it has DC; one byte
//	 7  which of its process's ports it is, at most 15; keys of regions say that, too
//	 8  number of the queue pair, four bytes, at most 2^24 - 1
//	12  first packet number, four bytes, at most 2^24 - 1
//	16  GID, 16 bytes
//
// A port that has DC adds, beyond bit 1 of byte 6:
//
//	32  number of the DC target, four bytes, at most 2^24 - 1
//	36  its access key, eight bytes
type address struct {
	linkLayer  uint8
	mtu        uint8
	readDepth  uint8
	lid        uint16
	needsRoute bool
	hasDC      bool
	member     uint8
	qpNumber   uint32
	psn        uint32
	gid        [libibverbs.GIDBytes]byte
	target     uint32 // with hasDC alone, as targetKey
	targetKey  uint64
}

const (
	addressVersion = 1
	addressBytes   = 32
	dcAddressBytes = addressBytes + 12

	flagRoute = 1
	flagDC    = 2
)

func (a address) encode() []byte {
	b := make([]byte, addressBytes, dcAddressBytes)
	b[0], b[1], b[2], b[3] = addressVersion, a.linkLayer, a.mtu, a.readDepth
	binary.LittleEndian.PutUint16(b[4:], a.lid)
	if a.needsRoute {
		b[6] |= flagRoute
	}
	if a.hasDC {
		b[6] |= flagDC
	}
	b[7] = a.member
	binary.LittleEndian.PutUint32(b[8:], a.qpNumber)
	binary.LittleEndian.PutUint32(b[12:], a.psn)
	copy(b[16:], a.gid[:])
	if a.hasDC {
		b = binary.LittleEndian.AppendUint32(b, a.target)
		b = binary.LittleEndian.AppendUint64(b, a.targetKey)
	}
	return b
}

// errAddress begins every error of decodeAddress.
var errAddress = errors.New("address of the peer's queue pair")

func decodeAddress(b []byte) (address, error) {
	want := addressBytes
	if len(b) >= addressBytes && b[6]&flagDC != 0 {
		want = dcAddressBytes
	}
	if len(b) != want {
		return address{}, fmt.Errorf("%w: %d bytes, want %d", errAddress, len(b), want)
	}
	a := address{
		linkLayer:  b[1],
		mtu:        b[2],
		readDepth:  b[3],
		lid:        binary.LittleEndian.Uint16(b[4:]),
		needsRoute: b[6]&flagRoute != 0,
		hasDC:      b[6]&flagDC != 0,
		member:     b[7],
		qpNumber:   binary.LittleEndian.Uint32(b[8:]),
		psn:        binary.LittleEndian.Uint32(b[12:]),
		gid:        [libibverbs.GIDBytes]byte(b[16:]),
	}
	if a.hasDC {
		a.target = binary.LittleEndian.Uint32(b[32:])
		a.targetKey = binary.LittleEndian.Uint64(b[36:])
	}
	switch {
	case b[0] != addressVersion:
		return a, fmt.Errorf("%w: version %d, want %d", errAddress, b[0], addressVersion)
	case a.mtu < libibverbs.MTU256 || a.mtu > libibverbs.MTU4096:
		return a, fmt.Errorf("%w: MTU code %d, must be 1 to 5", errAddress, a.mtu)
	case b[6] > flagRoute|flagDC || a.member >= maxNICs:
		return a, fmt.Errorf("%w: flags %d %d", errAddress, b[6], b[7])
	case a.qpNumber > libibverbs.MaxQPNumber || a.psn > libibverbs.MaxPSN || a.target > libibverbs.MaxQPNumber:
		return a, fmt.Errorf("%w: queue pair %#x, packet %#x, DC target %#x: more than 24 bits", errAddress, a.qpNumber, a.psn, a.target)
	}
	return a, nil
}
