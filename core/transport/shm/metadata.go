package shm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/transport"
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
//	48  2  length of params
//	50  2  length of the socket's name
//	52     params, name
//	       first 8 bytes of the SHA-256 of everything before
const (
	metadataMagic   = "MWSH"
	metadataVersion = 1
	metadataFixed   = 52
	checksumBytes   = 8
	nonceBytes      = 16
	maxParamsBytes  = 256
	maxNameBytes    = 100 // an abstract name has at most 107
)

// Info is what a rank says about itself.
type Info struct {
	ABIVersion     uint32
	Rank, NumRanks int
	// PID is the process id in the rank's own pid namespace.
	PID int
	// ControlBytes is the size of the control region.
	ControlBytes int64
	// Nonce is random: it names this one Listener.
	Nonce [nonceBytes]byte
	// Params is the caller's own blob.
	Params []byte
	// Socket is the abstract name of the listener, without the leading zero.
	Socket string
}

// marshal trusts its receiver, which Open has checked.
func (i *Info) marshal() []byte {
	le := binary.LittleEndian
	total := metadataFixed + len(i.Params) + len(i.Socket) + checksumBytes
	b := make([]byte, 0, total)
	b = append(b, metadataMagic...)
	b = le.AppendUint16(b, metadataVersion)
	b = le.AppendUint16(b, uint16(total))
	b = le.AppendUint32(b, i.ABIVersion)
	b = le.AppendUint32(b, uint32(i.Rank))
	b = le.AppendUint32(b, uint32(i.NumRanks))
	b = le.AppendUint32(b, uint32(i.PID))
	b = le.AppendUint64(b, uint64(i.ControlBytes))
	b = append(b, i.Nonce[:]...)
	b = le.AppendUint16(b, uint16(len(i.Params)))
	b = le.AppendUint16(b, uint16(len(i.Socket)))
	b = append(append(b, i.Params...), i.Socket...)
	return append(b, checksum(b)...)
}

func checksum(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:checksumBytes]
}

// ParseMetadata reads what Listener.Metadata wrote, perhaps on another rank.
// It accepts exactly the bytes that marshal writes; every error wraps
// transport.ErrMetadata. The result does not alias b.
func ParseMetadata(b []byte) (Info, error) {
	if err := checkFrame(b); err != nil {
		return Info{}, err
	}
	le := binary.LittleEndian
	params, name := int(le.Uint16(b[48:])), int(le.Uint16(b[50:]))
	if metadataFixed+params+name+checksumBytes != len(b) {
		return Info{}, bad("lengths of params (%d) and socket name (%d) do not fit the total of %d bytes", params, name, len(b))
	}
	i := Info{
		ABIVersion:   le.Uint32(b[8:]),
		Rank:         int(le.Uint32(b[12:])),
		NumRanks:     int(le.Uint32(b[16:])),
		PID:          int(le.Uint32(b[20:])),
		ControlBytes: int64(le.Uint64(b[24:])),
		Nonce:        [nonceBytes]byte(b[32:]),
		Params:       bytes.Clone(b[metadataFixed : metadataFixed+params]),
		Socket:       string(b[metadataFixed+params : metadataFixed+params+name]),
	}
	return i, i.check()
}

// checkFrame checks what does not depend on the fields' meaning, the version
// first: another version may have another length field or checksum.
func checkFrame(b []byte) error {
	le := binary.LittleEndian
	switch {
	case len(b) < metadataFixed+checksumBytes:
		return bad("truncated: %d bytes, at least %d expected", len(b), metadataFixed+checksumBytes)
	case string(b[:4]) != metadataMagic:
		return bad("it does not begin with %q: not made by this library", metadataMagic)
	case le.Uint16(b[4:]) != metadataVersion:
		return bad("format version %d, this library reads version %d", le.Uint16(b[4:]), metadataVersion)
	}
	switch total := int(le.Uint16(b[6:])); {
	case len(b) < total:
		return bad("truncated: %d of %d bytes", len(b), total)
	case len(b) > total:
		return bad("%d trailing bytes after %d", len(b)-total, total)
	}
	if body := len(b) - checksumBytes; !bytes.Equal(checksum(b[:body]), b[body:]) {
		return bad("checksum differs: the bytes were altered")
	}
	return nil
}

// check refuses values that no Listener can have.
func (i *Info) check() error {
	switch {
	case i.NumRanks < 1 || i.NumRanks > transport.MaxRanks:
		return bad("number of ranks is %d, 1 to %d are possible", i.NumRanks, transport.MaxRanks)
	case i.Rank < 0 || i.Rank >= i.NumRanks:
		return bad("rank %d of %d", i.Rank, i.NumRanks)
	case i.ControlBytes < 1 || i.ControlBytes > maxSegmentBytes || i.ControlBytes%8 != 0:
		return bad("control region of %d bytes: a positive multiple of 8 is needed", i.ControlBytes)
	case len(i.Params) > maxParamsBytes:
		return bad("params of %d bytes, at most %d are possible", len(i.Params), maxParamsBytes)
	case len(i.Socket) < 1 || len(i.Socket) > maxNameBytes:
		return bad("socket name of %d bytes", len(i.Socket))
	}
	return nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%w: %s", transport.ErrMetadata, fmt.Sprintf(format, args...))
}

// parseAll reads the metadata of all ranks and compares it with own, this
// rank's. It touches nothing else. Errors name the rank and the field.
func parseAll(all [][]byte, own *Info) ([]Info, error) {
	if len(all) != own.NumRanks {
		return nil, fmt.Errorf("%w: metadata of %d ranks given, the group has %d",
			transport.ErrMismatch, len(all), own.NumRanks)
	}
	infos := make([]Info, len(all))
	seen := make(map[[nonceBytes]byte]int, len(all))
	for r := range all {
		info, err := ParseMetadata(all[r])
		if err == nil {
			err = info.agrees(r, own)
		}
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", r, err)
		}
		if first, ok := seen[info.Nonce]; ok {
			return nil, fmt.Errorf("rank %d: %w", r, bad("nonce is that of rank %d too", first))
		}
		seen[info.Nonce] = r
		infos[r] = info
	}
	if !bytes.Equal(all[own.Rank], own.marshal()) {
		return nil, fmt.Errorf("rank %d: %w", own.Rank, bad("own entry is not what Metadata returned: an earlier or another listener's"))
	}
	return infos, nil
}

// agrees compares what must be equal on all ranks.
func (i *Info) agrees(index int, own *Info) error {
	differ := func(field string, theirs, ours any) error {
		return fmt.Errorf("%w: %s is %v, on rank %d it is %v", transport.ErrMismatch, field, theirs, own.Rank, ours)
	}
	switch {
	case i.ABIVersion != own.ABIVersion:
		return differ("ABI version", i.ABIVersion, own.ABIVersion)
	case i.Rank != index:
		return bad("entry %d is the metadata of rank %d", index, i.Rank)
	case i.NumRanks != own.NumRanks:
		return differ("number of ranks", i.NumRanks, own.NumRanks)
	case i.ControlBytes != own.ControlBytes:
		return differ("control region in bytes", i.ControlBytes, own.ControlBytes)
	}
	return nil
}
