package multihost

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/membership"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/wire"
)

// Metadata is little-endian:
//
//	 0  4  magic "MWMX"
//	 4  2  format version
//	 6  2  total length, checksum included
//	 8 16  host: of the boot id
//	24  8  host: network namespace
//	32  4  host: user
//	36  1  setting
//	37  1  1 for a survivor, else 0
//	38  2  epoch that a survivor comes from
//	40 16  id of this rendezvous's control connections
//	56  4  unresponsiveness timeout, milliseconds
//	60  2  length of the address; 0: none
//	62  2  length of the shared memory's metadata
//	64  2  liveness port, at the same address; 0: none
//	66  1  protection of control connections and of rows over TCP
//	67  1  0
//	68     address as text, that metadata
//	       first 8 bytes of the SHA-256 of everything before
const (
	metadataFixed   = 68
	maxAddressBytes = 64
)

var metadataFormat = domain.Format{Magic: "MWMX", Version: 3, LeastBytes: metadataFixed + domain.ChecksumBytes}

// Info is what a rank says about itself.
type Info struct {
	// Shm is what package shm says: rank, number of ranks, params and all.
	Shm      shm.Info
	Survivor bool
	// Epoch is the one that a survivor comes from.
	Epoch membership.Epoch
	// Setting is the transport that was asked for.
	Setting Setting
	// Bound is how long a rank may be unresponsive.
	Bound time.Duration
	// Addr is where control connections arrive; not valid: nowhere.
	Addr netip.AddrPort
	// Liveness is the port of that address at which nothing is said: its system
	// refuses connections there once the process has ended. 0: none.
	Liveness uint16
	// Protection is that of control connections.
	Protection wire.Protection

	host  host
	id    wire.PeerID
	local []byte // the metadata behind Shm
}

// LocalTo reports whether two ranks of a group share memory, so that no messages go
// between them.
func (i *Info) LocalTo(other *Info) bool {
	return i.Setting != TCP && i.host.differs(&other.host) == ""
}

// participant is the rank as one to have a control connection with.
func (i *Info) participant() link.Participant {
	a := link.Participant{ID: i.id, Addr: i.Addr}
	if i.Addr.IsValid() && i.Liveness != 0 {
		a.Liveness = netip.AddrPortFrom(i.Addr.Addr(), i.Liveness)
	}
	return a
}

func (i *Info) marshal() []byte {
	le := binary.LittleEndian
	var addr []byte
	if i.Addr.IsValid() {
		addr = []byte(i.Addr.String())
	}
	total := metadataFixed + len(addr) + len(i.local) + domain.ChecksumBytes
	b := append(metadataFormat.Begin(total), i.host.boot[:]...)
	b = le.AppendUint64(b, i.host.network)
	b = le.AppendUint32(b, i.host.user)
	b = append(b, byte(i.Setting), 0)
	if i.Survivor {
		b[len(b)-1] = 1
	}
	b = le.AppendUint16(b, uint16(i.Epoch))
	b = append(b, i.id[:]...)
	b = le.AppendUint32(b, uint32(i.Bound/time.Millisecond))
	b = le.AppendUint16(b, uint16(len(addr)))
	b = le.AppendUint16(b, uint16(len(i.local)))
	b = le.AppendUint16(b, i.Liveness)
	b = append(b, byte(i.Protection), 0)
	b = append(append(b, addr...), i.local...)
	return domain.AppendChecksum(b)
}

// ParseMetadata reads what Listener.Metadata wrote, perhaps on another rank.
// Every error wraps domain.ErrMetadata.
func ParseMetadata(b []byte) (Info, error) {
	if err := metadataFormat.Check(b); err != nil {
		return Info{}, err
	}
	le := binary.LittleEndian
	addr, local := int(le.Uint16(b[60:])), int(le.Uint16(b[62:]))
	if addr > maxAddressBytes || metadataFixed+addr+local+domain.ChecksumBytes != len(b) {
		return Info{}, domain.BadMetadata("lengths %d and %d do not fit the total of %d bytes", addr, local, len(b))
	}
	i := Info{
		host:     host{boot: [16]byte(b[8:]), network: le.Uint64(b[24:]), user: le.Uint32(b[32:])},
		Setting:  Setting(b[36]),
		Survivor: b[37] == 1,
		Epoch:    membership.Epoch(le.Uint16(b[38:])),
		id:       wire.PeerID(b[40:56]),
		Bound:    time.Duration(le.Uint32(b[56:])) * time.Millisecond,
		Liveness: le.Uint16(b[64:]), Protection: wire.Protection(b[66]),
		local: bytes.Clone(b[metadataFixed+addr : metadataFixed+addr+local]),
	}
	if i.Setting >= numSettings || b[37] > 1 || i.id == (wire.PeerID{}) || i.Bound == 0 || b[67] != 0 {
		return Info{}, domain.BadMetadata("setting %d, survivor %d, or a field that is 0", b[36], b[37])
	}
	return i, i.parseRest(string(b[metadataFixed : metadataFixed+addr]))
}

// parseRest reads what has a format of its own.
func (i *Info) parseRest(addr string) (err error) {
	if addr != "" {
		if i.Addr, err = netip.ParseAddrPort(addr); err != nil || i.Addr.String() != addr {
			return domain.BadMetadata("address %q", addr)
		}
	}
	if i.Shm, err = shm.ParseMetadata(i.local); err != nil {
		return err
	}
	if i.Shm.Survivor != i.Survivor {
		return domain.BadMetadata("a survivor in one part only")
	}
	return nil
}
