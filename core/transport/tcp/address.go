package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/moewire/moewire/core/transport"
)

// tokenBytes is the length of the random name of an endpoint, by which the accepting side
// finds it and both sides see which of them dials.
const tokenBytes = 16

type token [tokenBytes]byte

// address is what Endpoint.Local says:
//
//	"mwt", version u8 | endpoint id u64 | token | sockets u8 | addresses u8 |
//	per address: 16 bytes of IPv6, or IPv4 mapped into it | port u16
//
// Numbers are little-endian.
type address struct {
	id         transport.EndpointID
	token      token
	numSockets int
	addrs      []netip.AddrPort
}

const (
	addressMagic   = "mwt"
	addressVersion = 2 // of join, too
	addressHead    = len(addressMagic) + 1 + 8 + tokenBytes + 2
	addressEach    = 16 + 2
)

// Too many addresses would not fit transport.MaxAddressBytes.
var _ = [1]struct{}{}[(addressHead+maxAddresses*addressEach)/(transport.MaxAddressBytes+1)]

func (a *address) encode() []byte {
	b := append(make([]byte, 0, addressHead+len(a.addrs)*addressEach), addressMagic...)
	b = append(b, addressVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(a.id))
	b = append(b, a.token[:]...)
	b = append(b, byte(a.numSockets), byte(len(a.addrs)))
	for _, ap := range a.addrs {
		ip := ap.Addr().As16()
		b = append(b, ip[:]...)
		b = binary.LittleEndian.AppendUint16(b, ap.Port())
	}
	return b
}

var errAddress = errors.New("tcp: not the address of a tcp endpoint")

func decodeAddress(b []byte) (a address, err error) {
	if len(b) < addressHead || string(b[:3]) != addressMagic {
		return a, fmt.Errorf("%w (%d bytes)", errAddress, len(b))
	}
	if b[3] != addressVersion {
		return a, fmt.Errorf("%w of version %d: it has %d", errAddress, addressVersion, b[3])
	}
	a.id = transport.EndpointID(binary.LittleEndian.Uint64(b[4:]))
	copy(a.token[:], b[12:])
	n := int(b[addressHead-1])
	a.numSockets = int(b[addressHead-2])
	if a.numSockets < 1 || a.numSockets > MaxNumSockets || n < 1 || n > maxAddresses ||
		len(b) != addressHead+n*addressEach {
		return a, fmt.Errorf("%w (%d sockets, %d addresses in %d bytes)", errAddress, a.numSockets, n, len(b))
	}
	a.addrs = decodeAddrs(b[addressHead:], n)
	return a, nil
}

func decodeAddrs(b []byte, n int) []netip.AddrPort {
	addrs := make([]netip.AddrPort, n)
	for i := range addrs {
		ip := netip.AddrFrom16([16]byte(b[:16])).Unmap()
		addrs[i] = netip.AddrPortFrom(ip, binary.LittleEndian.Uint16(b[16:]))
		b = b[addressEach:]
	}
	return addrs
}

// dials reports whether the side with token a dials the one with token b. Both see the
// same, whichever asks first.
func dials(a, b token) bool { return bytes.Compare(a[:], b[:]) < 0 }

// join is what a dialling endpoint says of itself in the handshake: its own token and
// that of the endpoint that it dials, which of how many sockets this is, its depths, and
// for which time, from 1, it dials all of them.
type join struct {
	from, to             token
	index, num           int
	sendDepth, recvDepth int
	attempt              uint32
}

const joinBytes = 1 + 2*tokenBytes + 2 + 3*4

func (j *join) encode() []byte {
	b := append(make([]byte, 0, joinBytes), addressVersion)
	b = append(b, j.from[:]...)
	b = append(b, j.to[:]...)
	b = append(b, byte(j.index), byte(j.num))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.sendDepth))
	b = binary.LittleEndian.AppendUint32(b, uint32(j.recvDepth))
	return binary.LittleEndian.AppendUint32(b, j.attempt)
}

func decodeJoin(b []byte) (j join, ok bool) {
	if len(b) != joinBytes || b[0] != addressVersion {
		return j, false
	}
	copy(j.from[:], b[1:])
	copy(j.to[:], b[1+tokenBytes:])
	rest := b[1+2*tokenBytes:]
	j.index, j.num = int(rest[0]), int(rest[1])
	j.sendDepth = int(binary.LittleEndian.Uint32(rest[2:]))
	j.recvDepth = int(binary.LittleEndian.Uint32(rest[6:]))
	j.attempt = binary.LittleEndian.Uint32(rest[10:])
	return j, j.index < j.num && j.num <= MaxNumSockets && depthsOK(j.sendDepth, j.recvDepth) && dials(j.from, j.to)
}

// sameAs reports whether two sockets of an attempt may belong to one connection.
func (j *join) sameAs(k *join) bool {
	return j.num == k.num && j.sendDepth == k.sendDepth && j.recvDepth == k.recvDepth
}

func depthsOK(send, recv int) bool {
	return send >= 1 && send <= MaxDepth && recv >= 1 && recv <= MaxDepth
}
