package link

import (
	"encoding/binary"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/transport"
)

// offer is what a rank tells its peer about its end of a link, little-endian:
//
//	 0  4  magic "MWLO"
//	 4  2  format version
//	 6  2  tag
//	 8  4  messages outstanding at most
//	12  1  length of the carrier's name
//	13  1  1 if the link can go over to another carrier, else 0
//	14  2  length of the address
//	16  8  longest message, bytes
//	24 24  the receive ring: address, bytes, key
//	48     name, address
type offer struct {
	carrier string
	tag     uint32
	depth   int
	longest int64
	ring    transport.RemoteRegion
	address []byte
	standby bool
}

const (
	offerMagic   = "MWLO"
	offerVersion = 3
	offerFixed   = 48
	maxNameBytes = 32

	// MaxOfferBytes bounds Link.Offer.
	MaxOfferBytes = offerFixed + maxNameBytes + transport.MaxAddressBytes
)

// Offer returns what the peer's Connect needs.
func (l *Link) Offer() []byte {
	le := binary.LittleEndian
	name, address, ring := l.present().poller.carrier.Name(), l.ep.Local(), transport.RemoteFor(l.recv.ring, l.ep)
	b := append(make([]byte, 0, MaxOfferBytes), offerMagic...)
	b = le.AppendUint16(b, offerVersion)
	b = le.AppendUint16(b, uint16(l.recv.tag))
	b = le.AppendUint32(b, uint32(l.depth))
	b = append(b, byte(len(name)), l.canGoOver())
	b = le.AppendUint16(b, uint16(len(address)))
	b = le.AppendUint64(b, uint64(l.recv.longest))
	b = le.AppendUint64(b, ring.Addr)
	b = le.AppendUint64(b, ring.SizeBytes)
	b = le.AppendUint64(b, ring.Key)
	return append(append(b, name...), address...)
}

// canGoOver is 1 if there is another way.
func (l *Link) canGoOver() byte {
	if l.at+1 < len(l.ways) && l.ways[l.at+1].usable() {
		return 1
	}
	return 0
}

func parseOffer(b []byte) (o offer, err error) {
	le := binary.LittleEndian
	bad := func(text string, args ...any) (offer, error) {
		return offer{}, fmt.Errorf("%w: link offer: %s", domain.ErrMetadata, fmt.Sprintf(text, args...))
	}
	if len(b) < offerFixed || string(b[:4]) != offerMagic {
		return bad("%d bytes that are none", len(b))
	}
	if v := le.Uint16(b[4:]); v != offerVersion {
		return bad("version %d, this library reads %d", v, offerVersion)
	}
	name, address := int(b[12]), int(le.Uint16(b[14:]))
	o.tag, o.depth, o.longest = uint32(le.Uint16(b[6:])), int(le.Uint32(b[8:])), int64(le.Uint64(b[16:]))
	o.ring = transport.RemoteRegion{Addr: le.Uint64(b[24:]), SizeBytes: le.Uint64(b[32:]), Key: le.Uint64(b[40:])}
	switch {
	case name > maxNameBytes || address > transport.MaxAddressBytes || offerFixed+name+address != len(b):
		return bad("lengths %d and %d do not fit %d bytes", name, address, len(b))
	case o.tag > tagMask || b[13] > 1:
		return bad("tag %d, standby %d", o.tag, b[13])
	}
	o.standby = b[13] == 1
	o.carrier = string(b[offerFixed : offerFixed+name])
	o.address = append([]byte(nil), b[offerFixed+name:]...)
	return o, nil
}
