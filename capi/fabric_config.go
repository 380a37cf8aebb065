package main

// #include <stdlib.h>
// #include <string.h>
// #include "internal.h"
import "C"

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/endpoint"
	"github.com/moewire/moewire/core/fabric"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

func wipe(keys *wire.Keyring) {
	if keys != nil {
		keys.Close()
	}
}

// openFabric opens the fabric of a configuration. The bounds of the result fit an int.
func openFabric(c *C.mw_fabric_config_t) (*fabricObject, error) {
	cfg, err := fabricConfigOf(c)
	if err != nil {
		return nil, err
	}
	if cfg.Transport, err = carrierOf(c, &cfg); err != nil {
		wipe(cfg.Keys)
		return nil, err
	}
	f, err := fabric.Open(cfg)
	if err != nil {
		wipe(cfg.Keys)
		return nil, errors.Join(err, cfg.Transport.Close())
	}
	return &fabricObject{Fabric: f, keys: cfg.Keys}, nil
}

// checkFabricBounds checks what the carrier is opened with, before the fabric is.
func checkFabricBounds(c *C.mw_fabric_config_t) error {
	return inRanges([]ranged{
		{field(limits.NumPeers), int64(c.num_peers)},
		{field(limits.NumConnections), int64(c.num_connections)},
		{field(limits.NumRegions), int64(c.num_regions)},
		{field(limits.SendDepth), int64(c.send_depth)},
		{field(limits.RecvDepth), int64(c.recv_depth)},
		{field(limits.NumSockets), int64(c.num_sockets)},
		{choice("tcp_zero_copy", C.MW_ZERO_COPY_AUTO, C.MW_ZERO_COPY_OFF), int64(c.tcp_zero_copy)},
		{choice("eviction", C.MW_EVICT_SIEVE, C.MW_EVICT_FIFO), int64(c.eviction)},
	})
}

func fabricConfigOf(c *C.mw_fabric_config_t) (fabric.Config, error) {
	if err := checkFabricBounds(c); err != nil {
		return fabric.Config{}, err
	}
	const known = C.MW_FABRIC_MESSAGES | C.MW_FABRIC_ENCRYPT | C.MW_FABRIC_RDMA_DC
	if c.flags&^known != 0 {
		return fabric.Config{}, invalid("config->flags is %#x, allowed bits %#x", uint32(c.flags), known)
	}
	if uint64(c.slice_bytes) > uint64(limits.SliceBytes.Most) {
		return fabric.Config{}, invalid("config->slice_bytes is %d, allowed %s", uint64(c.slice_bytes), limits.SliceBytes)
	}
	if c.connect_timeout_us < 0 || c.drain_timeout_us < 0 {
		return fabric.Config{}, invalid("config->connect_timeout_us is %d, drain_timeout_us %d, allowed 0 (the default) and more",
			int64(c.connect_timeout_us), int64(c.drain_timeout_us))
	}
	connect, _ := micros("", int64(c.connect_timeout_us))
	drain, _ := micros("", int64(c.drain_timeout_us))
	cfg := fabric.Config{
		Epoch: uint64(c.epoch), NumPeers: int(c.num_peers), NumConnections: int(c.num_connections),
		NumTransfers: int(c.num_transfers), NumRegions: int(c.num_regions), SendDepth: int(c.send_depth),
		RecvDepth: int(c.recv_depth), NumUnmatched: int(c.num_unmatched), SliceBytes: int64(c.slice_bytes),
		ConnectFor: min(connect, time.Hour), DrainFor: min(drain, time.Hour),
		Eviction: endpoint.Policy(c.eviction),
	}
	if c.flags&C.MW_FABRIC_MESSAGES != 0 {
		cfg.Mode = fabric.Messages
	}
	return cfg, nil
}

// carrierOf opens the carrier, with room for all that the fabric may have.
func carrierOf(c *C.mw_fabric_config_t, cfg *fabric.Config) (transport.Transport, error) {
	keys, err := keyringOf(c.key_source, &c.keys, nil)
	if err != nil {
		return nil, err
	}
	cfg.Keys = keys
	switch c.carrier {
	case C.MW_CARRIER_RDMA:
		return openRDMA(c, cfg)
	case 0, C.MW_CARRIER_TCP:
		return tcpOf(c, cfg, keys)
	}
	return nil, invalid("config->carrier is %d, allowed 0, MW_CARRIER_TCP and MW_CARRIER_RDMA", uint32(c.carrier))
}

func tcpOf(c *C.mw_fabric_config_t, cfg *fabric.Config, keys *wire.Keyring) (transport.Transport, error) {
	for _, s := range [...]struct {
		name  string
		given C.mw_bytes_t
	}{{"rdma_devices", c.rdma_devices}, {"rdma_gid", c.rdma_gid}, {"rdma_near", c.rdma_near}} {
		if s.given.num_bytes != 0 {
			return nil, invalid("config->%s is given, allowed with MW_CARRIER_RDMA alone", s.name)
		}
	}
	if c.flags&C.MW_FABRIC_RDMA_DC != 0 {
		return nil, invalid("config->flags MW_FABRIC_RDMA_DC is given, allowed with MW_CARRIER_RDMA alone")
	}
	t := tcp.Config{Keyring: keys, NumSockets: int(c.num_sockets), ZeroCopy: tcp.ZeroCopy(c.tcp_zero_copy)}
	if c.flags&C.MW_FABRIC_ENCRYPT != 0 {
		t.Protection = wire.ProtectEncrypt
	}
	var err error
	if t.Interface, err = textOf("config->interface_name", &c.interface_name); err != nil {
		return nil, err
	}
	if t.Listen, err = addressesOf("config->listen", &c.listen); err != nil {
		return nil, err
	}
	if t.Advertise, err = addressesOf("config->advertise", &c.advertise); err != nil {
		return nil, err
	}
	t.NumEndpoints = max(cfg.NumConnections, cfg.NumPeers)
	if cfg.NumRegions > 0 {
		t.NumRegions = cfg.NumRegions + 1 // and the fabric's own region
	}
	tr, err := tcp.Open(t)
	if errno := syscall.Errno(0); err != nil && !errors.As(err, &errno) {
		return nil, invalid("%v", err) // the cause is not a failure of the system
	}
	return tr, err
}

// openRDMA opens the RDMA devices.
func openRDMA(c *C.mw_fabric_config_t, cfg *fabric.Config) (transport.Transport, error) {
	for name, given := range map[string]bool{
		"listen": c.listen.num_bytes != 0, "interface_name": c.interface_name.num_bytes != 0,
		"advertise": c.advertise.num_bytes != 0, "num_sockets": c.num_sockets != 0,
		"flags MW_FABRIC_ENCRYPT": c.flags&C.MW_FABRIC_ENCRYPT != 0, "tcp_zero_copy": c.tcp_zero_copy != 0,
	} {
		if given {
			return nil, invalid("config->%s is given, allowed with MW_CARRIER_TCP alone", name)
		}
	}
	given, err := rdmaOf(c.flags&C.MW_FABRIC_RDMA_DC != 0, c.rdma_devices, c.rdma_gid, c.rdma_near)
	if err != nil {
		return nil, err
	}
	v, err := given.Config()
	if err != nil {
		return nil, err
	}
	if v.Near == (verbs.Place{}) {
		v.Near = verbs.Here()
	}
	v.NumEndpoints = max(cfg.NumConnections, cfg.NumPeers)
	v.SendDepth, v.RecvDepth = cfg.SendDepth, cfg.RecvDepth
	return verbs.NewGroup(v)
}

// addressesOf reads "address:port, ...".
func addressesOf(name string, b *C.mw_bytes_t) ([]netip.AddrPort, error) {
	text, err := textOf(name, b)
	if err != nil || text == "" {
		return nil, err
	}
	var all []netip.AddrPort
	for _, part := range strings.Split(text, ",") {
		a, err := netip.ParseAddrPort(strings.TrimSpace(part))
		if err != nil {
			return nil, invalid("%s has %.64q, allowed is address:port, such as 10.0.0.1:0 or [fe80::1]:7000", name, part)
		}
		all = append(all, a)
	}
	return all, nil
}

// keyringOf reads the keys of a configuration; they may have terms, if these are not nil.
func keyringOf(from C.uint32_t, given *C.mw_bytes_t, terms wire.Terms) (*wire.Keyring, error) {
	var source wire.Source
	switch from {
	case C.MW_KEYS_FILE:
		path, err := textOf("config->keys", given)
		if err != nil {
			return nil, err
		}
		source = wire.FromFile(path)
	case C.MW_KEYS_ENV:
		name, err := textOf("config->keys", given)
		if err != nil {
			return nil, err
		}
		source = func() ([]byte, error) { return environment(name) }
	case C.MW_KEYS_BYTES:
		if uint64(given.num_bytes) > maxTextBytes { // checked before any byte there is read
			return nil, invalid("config->keys: more than %d bytes", maxTextBytes)
		}
		text, err := view[byte]("config->keys", uint64(given.address), int64(given.num_bytes))
		if err != nil {
			return nil, err
		}
		keys, err := wire.NewFixedKeyring(wire.Lines(bytes.Clone(text)), terms) // the text stays the caller's
		if err != nil {
			return nil, invalid("config->keys: %v", err)
		}
		return keys, nil
	default:
		return nil, invalid("config->key_source is %d, allowed MW_KEYS_FILE, MW_KEYS_ENV and MW_KEYS_BYTES: there is no mode without keys",
			uint32(from))
	}
	keys, err := wire.NewKeyringWithTerms(source, terms)
	if err != nil {
		return nil, invalid("config->keys: %v", err)
	}
	return keys, nil
}

// environment reads the environment as it is now. Go's own copy dates from the loading of
// the library.
func environment(name string) ([]byte, error) {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	value := C.getenv(n)
	if value == nil {
		return nil, errors.New("environment variable " + name + " is not set")
	}
	return wire.Lines(C.GoBytes(unsafe.Pointer(value), C.int(C.strlen(value)))), nil
}
