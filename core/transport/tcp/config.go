package tcp

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/wire"
)

// Bounds of a transport. The wire format has room for more.
const (
	// MaxNumSockets is the largest Config.NumSockets.
	MaxNumSockets = limits.MaxSockets
	// MaxNumEndpoints is the largest Config.NumEndpoints.
	MaxNumEndpoints = 1 << 16
	// MaxDepth is the largest send or receive depth of an endpoint.
	MaxDepth = 4096

	maxAddresses    = 16
	numPieces       = 8
	inlineBytes     = 256
	maxRequestBytes = 1 << 30
)

// Config says how a transport is made. Only Keyring and where to listen have no default.
// Errors use the names that users of the C ABI and of Python set: listen, interface,
// advertise.
type Config struct {
	// Listen are the addresses to listen at; port 0 lets the system choose.
	Listen []netip.AddrPort
	// Interface adds the addresses of a network interface, each with a port
	// of the system's choice.
	Interface string
	// Advertise are the addresses that peers are told, when those of Listen
	// are not the ones that peers see. They are needed for a Listen address
	// that stands for all (0.0.0.0).
	Advertise []netip.AddrPort
	// Keyring has the keys shared with all peers.
	Keyring *wire.Keyring
	// Protection of payloads. Default: wire.ProtectDigest. The same on all
	// sides.
	Protection wire.Protection

	// NumSockets is how many connections an endpoint spreads its bytes over,
	// 1 to MaxNumSockets. The smaller number of both sides counts. Default 1.
	NumSockets int
	// NumEndpoints bounds the endpoints that are not closed. Default 256.
	NumEndpoints int
	// NumRegions bounds the regions that are not closed. Default 4096.
	NumRegions int
	// NumPending bounds the connections that have not proved yet that they
	// know a key; when one more comes, the oldest is closed. Default 64.
	NumPending int
	// HandshakeTimeout bounds the life of such a connection. Default 2 s.
	HandshakeTimeout time.Duration
	// UnresponsiveTimeout is how long bytes under way, or probes of an idle
	// connection, may stay unanswered by the peer's host, or the peer may take
	// nothing, before the endpoint fails. Default 10 s, at least 1 s.
	UnresponsiveTimeout time.Duration
	// ReceiveTimeout is how long a request may wait for the peer to post a
	// receive before it fails with StatusNoReceive. Default 10 s.
	ReceiveTimeout time.Duration

	// SocketBufferBytes is the size of the kernel's buffer of each direction
	// of a socket. Default 0: the kernel adapts it.
	SocketBufferBytes int

	// ZeroCopy says whether long payloads are sent without a copy. Default
	// ZeroCopyAuto. Only under wire.ProtectDigest: what is encrypted is a copy.
	ZeroCopy ZeroCopy
	// ZeroCopyBytes is the shortest payload of a message that is sent so. A
	// message has up to 256 KiB of a request. Default 64 KiB.
	ZeroCopyBytes int

	segmentBytes int // tests and benchmarks
}

func (c *Config) complete() error {
	c.Protection = orDefault(c.Protection, wire.ProtectDigest)
	c.NumSockets = orDefault(c.NumSockets, 1)
	c.NumEndpoints = orDefault(c.NumEndpoints, 256)
	c.NumRegions = orDefault(c.NumRegions, 4096)
	c.NumPending = orDefault(c.NumPending, 64)
	c.HandshakeTimeout = orDefault(c.HandshakeTimeout, 2*time.Second)
	c.UnresponsiveTimeout = orDefault(c.UnresponsiveTimeout, 10*time.Second)
	c.ReceiveTimeout = orDefault(c.ReceiveTimeout, 10*time.Second)
	c.ZeroCopyBytes = orDefault(c.ZeroCopyBytes, 64<<10)
	c.segmentBytes = orDefault(c.segmentBytes, segmentBytes)
	return c.check()
}

func orDefault[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}

func (c *Config) check() error {
	for _, n := range []struct {
		name          string
		given, lo, hi int
	}{
		{"NumSockets", c.NumSockets, 1, MaxNumSockets},
		{"NumEndpoints", c.NumEndpoints, 1, MaxNumEndpoints},
		{"NumRegions", c.NumRegions, 1, 1 << 20},
		{"NumPending", c.NumPending, 1, 1 << 16},
		{"SocketBufferBytes", c.SocketBufferBytes, 0, 1 << 30},
		{"ZeroCopy", int(c.ZeroCopy), int(ZeroCopyAuto), int(ZeroCopyOff)},
		{"ZeroCopyBytes", c.ZeroCopyBytes, 1, maxRequestBytes},
	} {
		if n.given < n.lo || n.given > n.hi {
			return fmt.Errorf("tcp: Config.%s is %d, allowed are %d to %d", n.name, n.given, n.lo, n.hi)
		}
	}
	return c.checkOthers()
}

func (c *Config) checkOthers() error {
	switch {
	case c.Keyring == nil:
		return fmt.Errorf("tcp: Config.Keyring is nil: there is no unauthenticated mode")
	case c.Protection != wire.ProtectDigest && c.Protection != wire.ProtectEncrypt:
		return fmt.Errorf("tcp: Config.Protection is %d, allowed are ProtectDigest and ProtectEncrypt", c.Protection)
	case len(c.Listen) == 0 && c.Interface == "":
		return fmt.Errorf("tcp: listen and interface are empty: say where to listen")
	case c.HandshakeTimeout < 0 || c.ReceiveTimeout < 0:
		return fmt.Errorf("tcp: a timeout is negative: HandshakeTimeout %v, ReceiveTimeout %v",
			c.HandshakeTimeout, c.ReceiveTimeout)
	case c.UnresponsiveTimeout < time.Second:
		return fmt.Errorf("tcp: Config.UnresponsiveTimeout is %v, at least 1s is needed", c.UnresponsiveTimeout)
	}
	return c.checkAddresses()
}

func (c *Config) checkAddresses() error {
	for _, a := range c.Listen {
		switch {
		case !a.Addr().IsValid():
			return fmt.Errorf("tcp: listen has an address that is none")
		case a.Addr().IsUnspecified() && len(c.Advertise) == 0:
			return fmt.Errorf("tcp: listen has %v, which peers cannot dial: advertise must say what they can", a)
		}
	}
	for _, a := range c.Advertise {
		if !a.Addr().IsValid() || a.Addr().IsUnspecified() || a.Port() == 0 {
			return fmt.Errorf("tcp: advertise has %v, which peers cannot dial", a)
		}
	}
	if len(c.Listen) > maxAddresses || len(c.Advertise) > maxAddresses {
		return fmt.Errorf("tcp: listen and interface have %d addresses, advertise has %d, at most %d are allowed",
			len(c.Listen), len(c.Advertise), maxAddresses)
	}
	return nil
}
