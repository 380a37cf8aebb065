package fabric

import (
	"fmt"
	"time"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/wire"
)

// Mode says what receives are for. Both ends of a connection have the same.
type Mode uint8

// The modes.
const (
	Immediates Mode = iota // writes with immediate
	Messages               // sends into receives with memory
)

// String names the mode.
func (m Mode) String() string {
	if m == Messages {
		return "messages"
	}
	return "immediates"
}

// Config says how a fabric works. Zero values get the defaults named here.
type Config struct {
	// Transport is the carrier. The fabric owns it from Open on, and Close
	// closes it; when Open fails it is the caller's still.
	Transport transport.Transport
	Mode      Mode
	// Keys, shared by all peers, sign the handshakes, if not nil: an attacker that can
	// forge handshakes can keep peers apart, and end their connections. They are needed
	// for a carrier that connects to any address that it is given (RDMA). The same at
	// both ends.
	Keys *wire.Keyring
	// Counters count refused handshakes, if not nil.
	Counters *wire.Counters
	// Epoch is this process's life, larger than that of any former one that
	// peers have met (nanoseconds since 1970).
	Epoch uint64
	// NumPeers bounds the peers that are remembered (64). At the bound, a peer with which
	// nothing is under way is forgotten for another one. Messages to it, if there are any
	// later, are counted from 1 again.
	NumPeers int
	// NumConnections bounds the connections, including those that are being made or taken
	// down (NumPeers, as far as the carrier allows). If there are more peers than that, a
	// connection that was not used lately makes room for another: operations on it end
	// with ErrEnded.
	NumConnections int
	// Eviction chooses the connection that makes room (endpoint.SIEVE: one that was not
	// used lately; endpoint.FIFO: the oldest).
	Eviction endpoint.Policy
	// NumTransfers bounds the operations that are not closed, or not released
	// (1024).
	NumTransfers int
	// NumRegions bounds the regions that are not closed (1024).
	NumRegions int
	// SendDepth bounds the slices outstanding on one connection (128).
	SendDepth int
	// RecvDepth bounds the receives posted on one connection: with Messages
	// the caller's, else the window (128).
	RecvDepth int
	// NumUnmatched bounds the immediates of one peer that no receive has taken (256).
	NumUnmatched int
	// SliceBytes is the largest part of an operation (what the carrier allows).
	SliceBytes int64
	// ConnectFor bounds the making of a connection (10 s), DrainFor the wait
	// for what a connection has outstanding when it is taken down (30 s).
	ConnectFor, DrainFor time.Duration
}

func orDefault[T int | int64 | uint64](v *T, otherwise T) {
	if *v == 0 {
		*v = otherwise
	}
}

func (c *Config) complete() error {
	if c.Transport == nil {
		return invalid("Transport must be given")
	}
	l := c.Transport.Limits()
	orDefault(&c.Epoch, uint64(time.Now().UnixNano()))
	orDefault(&c.NumPeers, 64)
	orDefault(&c.NumConnections, min(c.NumPeers, l.NumEndpoints))
	orDefault(&c.NumTransfers, 1024)
	orDefault(&c.NumRegions, 1024)
	orDefault(&c.SendDepth, min(128, l.SendDepth))
	orDefault(&c.RecvDepth, min(128, l.RecvDepth))
	orDefault(&c.NumUnmatched, 256)
	orDefault(&c.SliceBytes, l.MaxRequestBytes-headerBytes)
	return c.check(&l)
}

func (c *Config) check(l *transport.Limits) error {
	if c.Mode > Messages {
		return invalid("Mode is %d, allowed Immediates and Messages", c.Mode)
	}
	if c.Eviction > endpoint.FIFO {
		return invalid("Eviction is %d, allowed SIEVE and FIFO", c.Eviction)
	}
	for _, n := range []struct {
		name   string
		is, to int64
	}{
		{"num_peers", int64(c.NumPeers), limits.NumPeers.Most},
		{"num_connections", int64(c.NumConnections), int64(l.NumEndpoints)},
		{"num_transfers", int64(c.NumTransfers), limits.NumTransfers.Most},
		{"num_regions", int64(c.NumRegions), limits.NumRegions.Most},
		{"send_depth", int64(c.SendDepth), int64(l.SendDepth)},
		{"recv_depth", int64(c.RecvDepth), int64(l.RecvDepth)},
		{"num_unmatched", int64(c.NumUnmatched), limits.NumUnmatched.Most},
		{"slice_bytes", c.SliceBytes, l.MaxRequestBytes - headerBytes},
	} {
		if n.is < 1 || n.is > n.to {
			return invalid("%s is %d, allowed 1 to %d", n.name, n.is, n.to)
		}
	}
	if _, credulous := c.Transport.(interface{ ConnectsUnproven() }); credulous && c.Keys == nil {
		return invalid("Keys must be given: %s connects to whatever address a handshake says", c.Transport.Name())
	}
	if c.Mode == Messages && l.NumPieces < 2 {
		return fmt.Errorf("messages need requests of 2 pieces, %s has %d: %w", c.Transport.Name(), l.NumPieces, transport.ErrNotSupported)
	}
	if c.ConnectFor < 0 || c.DrainFor < 0 {
		return invalid("ConnectFor is %v, DrainFor %v, allowed 0 (the default) and more", c.ConnectFor, c.DrainFor)
	}
	return nil
}

func (c *Config) store(f *Fabric) endpoint.Config {
	return endpoint.Config{
		Transport: c.Transport, Spec: transport.EndpointSpec{SendDepth: c.SendDepth, RecvDepth: c.RecvDepth},
		Cap: c.NumConnections, Policy: c.Eviction, MaxPeers: c.NumPeers, Epoch: c.Epoch,
		ConnectFor: c.ConnectFor, DrainFor: c.DrainFor,
		Send: f.keepHandshake, Prepare: f.prepare, Changed: f.changed,
	}
}
