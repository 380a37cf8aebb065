package shm

import (
	"bytes"
	"encoding/binary"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// Metadata is little-endian:
//
//	 0  4  magic "MWSH"
//	 4  2  format version
//	 6  2  total length, checksum included
//	 8  4  ABI version
//	12  4  rank
//	16  4  number of ranks
//	20  4  process id, in the rank's own pid namespace
//	24  8  bytes of the control region
//	32 16  nonce
//	48 16  identity
//	64  2  1 for a survivor, else 0
//	66  2  length of params
//	68  2  length of the socket's name
//	70     params, name
//	       first 8 bytes of the SHA-256 of everything before
const (
	metadataFixed  = 70
	nonceBytes     = 16
	maxParamsBytes = 256
	maxNameBytes   = 100 // an abstract name has at most 107
)

var metadataFormat = domain.Format{Magic: "MWSH", Version: 2, LeastBytes: metadataFixed + domain.ChecksumBytes}

// Info is what a rank says about itself.
type Info struct {
	ABIVersion     uint32
	Rank, NumRanks int
	// PID is the process id in the rank's own pid namespace.
	PID int
	// ControlBytes is the size of the control region.
	ControlBytes int64
	// Nonce is random: it names this one Listener, and so one rendezvous.
	Nonce [nonceBytes]byte
	// Identity is random: it names the rank's memory and process, from Open
	// on and in all rendezvous.
	Identity [nonceBytes]byte
	// Survivor means that the rank comes from an earlier rendezvous (Relist).
	Survivor bool
	// Params is the caller's own blob.
	Params []byte
	// Socket is the abstract name of the listener, without the leading zero.
	Socket string
}

// marshal trusts its receiver, which Open has checked.
func (i *Info) marshal() []byte {
	le := binary.LittleEndian
	total := metadataFixed + len(i.Params) + len(i.Socket) + domain.ChecksumBytes
	b := le.AppendUint32(metadataFormat.Begin(total), i.ABIVersion)
	b = le.AppendUint32(b, uint32(i.Rank))
	b = le.AppendUint32(b, uint32(i.NumRanks))
	b = le.AppendUint32(b, uint32(i.PID))
	b = le.AppendUint64(b, uint64(i.ControlBytes))
	b = append(append(b, i.Nonce[:]...), i.Identity[:]...)
	b = append(b, boolByte(i.Survivor), 0)
	b = le.AppendUint16(b, uint16(len(i.Params)))
	b = le.AppendUint16(b, uint16(len(i.Socket)))
	b = append(append(b, i.Params...), i.Socket...)
	return domain.AppendChecksum(b)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// ParseMetadata reads what Listener.Metadata wrote, perhaps on another rank.
// It accepts exactly the bytes that marshal writes; every error wraps
// domain.ErrMetadata. The result does not alias b.
func ParseMetadata(b []byte) (Info, error) {
	if err := metadataFormat.Check(b); err != nil {
		return Info{}, err
	}
	le := binary.LittleEndian
	params, name := int(le.Uint16(b[66:])), int(le.Uint16(b[68:]))
	if b[64] > 1 || b[65] != 0 {
		return Info{}, domain.BadMetadata("survivor is %d", le.Uint16(b[64:]))
	}
	if metadataFixed+params+name+domain.ChecksumBytes != len(b) {
		return Info{}, domain.BadMetadata("lengths of params (%d) and socket name (%d) do not fit the total of %d bytes", params, name, len(b))
	}
	i := Info{
		ABIVersion:   le.Uint32(b[8:]),
		Rank:         int(le.Uint32(b[12:])),
		NumRanks:     int(le.Uint32(b[16:])),
		PID:          int(le.Uint32(b[20:])),
		ControlBytes: int64(le.Uint64(b[24:])),
		Nonce:        [nonceBytes]byte(b[32:]),
		Identity:     [nonceBytes]byte(b[48:]),
		Survivor:     b[64] == 1,
		Params:       bytes.Clone(b[metadataFixed : metadataFixed+params]),
		Socket:       string(b[metadataFixed+params : metadataFixed+params+name]),
	}
	return i, i.check()
}

// check refuses values that no Listener can have.
func (i *Info) check() error {
	switch {
	case i.NumRanks < 1 || i.NumRanks > rankset.MaxRanks:
		return domain.BadMetadata("number of ranks is %d, 1 to %d are possible", i.NumRanks, rankset.MaxRanks)
	case i.Rank < 0 || i.Rank >= i.NumRanks:
		return domain.BadMetadata("rank %d of %d", i.Rank, i.NumRanks)
	case i.ControlBytes < 1 || i.ControlBytes > maxSegmentBytes || i.ControlBytes%8 != 0:
		return domain.BadMetadata("control region of %d bytes: a positive multiple of 8 is needed", i.ControlBytes)
	case len(i.Params) > maxParamsBytes:
		return domain.BadMetadata("params of %d bytes, at most %d are possible", len(i.Params), maxParamsBytes)
	case len(i.Socket) < 1 || len(i.Socket) > maxNameBytes:
		return domain.BadMetadata("socket name of %d bytes", len(i.Socket))
	}
	return nil
}
