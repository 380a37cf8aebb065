package main

// #include "internal.h"
import "C"

import (
	"bytes"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/multihost"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

// maxTextBytes bounds the texts of a configuration.
const maxTextBytes = 64 << 10

// reachOf reads how a rank reaches the others, except for the settings of shared memory.
func reachOf(c *C.mw_config_t) (cfg multihost.Config, err error) {
	for _, n := range [...]struct {
		name      string
		v, lo, hi int64
	}{
		{"transport", int64(c.transport), C.MW_TRANSPORT_AUTO, C.MW_TRANSPORT_RDMA},
		{"protection", int64(c.protection), C.MW_PROTECTION_DIGEST, C.MW_PROTECTION_ENCRYPT},
		{"tcp_zero_copy", int64(c.tcp_zero_copy), C.MW_ZERO_COPY_AUTO, C.MW_ZERO_COPY_OFF},
		{"reserved", int64(c.reserved), 0, 0},
	} {
		if err := inRange("config->"+n.name, n.v, n.lo, n.hi); err != nil {
			return cfg, err
		}
	}
	cfg.Setting = multihost.Setting(c.transport)
	if err := bounds(c, &cfg); err != nil {
		return cfg, err
	}
	host, err := text("config->host", c.host)
	if err != nil {
		return cfg, err
	}
	cfg.Host = string(host)
	if cfg.Listen, err = listenOf(c.listen); err != nil {
		return cfg, err
	}
	cfg.Words = []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced(), layout.Record() + telemetry.LeftOffset()}
	cfg.Moments = []int64{layout.Since()}
	nics, err := nicsOf([3]rdmaSetting{
		{"config->rdma_devices", c.rdma_devices}, {"config->rdma_gid", c.rdma_gid}, {"config->rdma_near", c.rdma_near},
	})
	if err != nil {
		return cfg, err
	}
	nics.DC = c.flags&C.MW_CONFIG_RDMA_DC != 0
	cfg.Protection = protectionOf(c)
	if cfg.Keys, err = keysOf(c); err != nil { // keys come last, so that no later failure leaves keys in memory
		return cfg, err
	}
	cfg.Carriers = carriers(&cfg, tcp.Config{Protection: cfg.Protection, ZeroCopy: tcp.ZeroCopy(c.tcp_zero_copy)}, nics)
	return cfg, nil
}

// rdmaSetting is one of the settings that say which RDMA devices may be used, and how.
type rdmaSetting struct {
	name  string
	given C.mw_bytes_t
}

// nicsOf reads the RDMA settings: devices, GID and place.
func nicsOf(settings [3]rdmaSetting) (v verbs.Config, err error) {
	for i, read := range [...]func(text string) error{
		func(s string) (err error) { v.Devices, err = verbs.ParseDevices(s); return err },
		func(s string) (err error) { v.GID, err = verbs.ParseGID(s); return err },
		func(s string) (err error) { v.Near, err = verbs.ParsePlace(s); return err },
	} {
		given, err := text(settings[i].name, settings[i].given)
		if err != nil {
			return v, err
		}
		if err := read(string(given)); err != nil {
			return v, invalid("%s is %v", settings[i].name, err)
		}
	}
	return v, nil
}

func bounds(c *C.mw_config_t, cfg *multihost.Config) error {
	if n := uint64(c.ring_bytes); n != 0 {
		if n < link.MinRingBytes || n > link.MaxRingBytes || bits.OnesCount64(n) != 1 {
			return invalid("config->ring_bytes is %d, allowed a power of two from %d to %d, and 0", n, link.MinRingBytes, int64(link.MaxRingBytes))
		}
		cfg.Link = link.Config{RingBytes: int64(n), NumMessages: link.DefaultNumMessages}
	}
	unresponsive, err := micros("config->unresponsive_after_us", int64(c.unresponsive_after_us))
	switch {
	case err != nil:
		return err
	case unresponsive < 0 || (unresponsive > 0 && unresponsive < minUnresponsive) || unresponsive > time.Hour:
		return invalid("config->unresponsive_after_us is %d, allowed 0 (%v), and %d to %d", int64(c.unresponsive_after_us),
			multihost.DefaultBound, minUnresponsive.Microseconds(), time.Hour.Microseconds())
	}
	if cfg.Bound = unresponsive; unresponsive > 0 {
		cfg.Heartbeat = max(min(multihost.DefaultHeartbeat, unresponsive/8), time.Millisecond)
	}
	return nil
}

// minUnresponsive is the shortest bound: below it, a busy machine looks dead.
const minUnresponsive = 20 * time.Millisecond

func protectionOf(c *C.mw_config_t) wire.Protection {
	if c.protection == C.MW_PROTECTION_ENCRYPT {
		return wire.ProtectEncrypt
	}
	return wire.ProtectDigest
}

func text(name string, b C.mw_bytes_t) ([]byte, error) {
	if uint64(b.num_bytes) > maxTextBytes {
		return nil, invalid("%s has %d bytes, allowed 0 to %d", name, uint64(b.num_bytes), maxTextBytes)
	}
	return view[byte](name, uint64(b.address), int64(b.num_bytes))
}

// keysOf reads a keyring. It returns nil if there are no keys. Its errors show no key.
func keysOf(c *C.mw_config_t) (*wire.Keyring, error) {
	given, err := text("config->keys", c.keys)
	if err != nil {
		return nil, err
	}
	path, err := text("config->key_file", c.key_file)
	switch {
	case err != nil:
		return nil, err
	case len(path) > 0 && len(given) > 0:
		return nil, invalid("config->keys and config->key_file are both given, allowed is one of them")
	case len(path) > 0:
		ring, err := wire.NewKeyring(wire.FromFile(string(path)))
		if err != nil {
			return nil, invalid("config->key_file: %v", err)
		}
		return ring, nil
	case len(given) > 0:
		ring, err := wire.NewFixedKeyring(bytes.Clone(given)) // a keyring wipes the bytes that it has read
		if err != nil {
			return nil, invalid("config->keys: %v", err)
		}
		return ring, nil
	}
	return nil, nil
}

// rereadKeys reads the key file again for the next rendezvous: keys can be exchanged
// while ranks run.
func (b *buffer) rereadKeys() error {
	if b.open.Keys == nil {
		return nil
	}
	if err := b.open.Keys.Reload(); err != nil {
		return invalid("config->key_file: %v", err)
	}
	return nil
}

// wipeKeys wipes the keys of a buffer that makes no further connections.
func (b *buffer) wipeKeys() { wipe(b.open.Keys) }

func wipe(keys *wire.Keyring) {
	if keys != nil {
		keys.Close()
	}
}

// listenOf reads an address, with or without a port, or an interface.
func listenOf(b C.mw_bytes_t) (at netip.AddrPort, err error) {
	given, err := text("config->listen", b)
	if err != nil || len(given) == 0 {
		return at, err
	}
	if at, err = hostPortOf(string(given)); err != nil {
		return at, invalid("config->listen is %q: %v", given, err)
	}
	if at.Addr().IsUnspecified() || at.Addr().IsMulticast() {
		return at, invalid("config->listen is %q, allowed an address of one interface: peers are told it", given)
	}
	return at, nil
}

// unbracketed removes the brackets of an IPv6 address that has no port: "[::1]". Other
// text stays as it is.
func unbracketed(s string) string {
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") && strings.Contains(inner, ":") {
		return strings.TrimSuffix(inner, "]")
	}
	return s
}

func hostPortOf(s string) (netip.AddrPort, error) {
	if at, err := netip.ParseAddrPort(s); err == nil {
		return at, nil
	}
	if addr, err := netip.ParseAddr(unbracketed(s)); err == nil {
		return netip.AddrPortFrom(addr, 0), nil
	}
	nic, err := net.InterfaceByName(s)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("no address, ADDRESS:PORT or interface of this machine")
	}
	addrs, err := nic.Addrs()
	if err != nil {
		return netip.AddrPort{}, err
	}
	return firstOf(s, addrs)
}

// firstOf prefers an address that needs no zone.
func firstOf(nic string, addrs []net.Addr) (netip.AddrPort, error) {
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && !p.Addr().IsLinkLocalUnicast() {
			return netip.AddrPortFrom(p.Addr().Unmap(), 0), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("interface %s has no address that others can use", nic)
}

// carriers returns the carriers between hosts, in order of preference.
func carriers(cfg *multihost.Config, sockets tcp.Config, nics verbs.Config) []multihost.Carrier {
	sockets.Keyring, sockets.Listen = cfg.Keys, []netip.AddrPort{netip.AddrPortFrom(cfg.Listen.Addr(), 0)}
	rdma := func(turn int) (transport.Transport, error) {
		if nics.Near == (verbs.Place{}) {
			nics.Near = verbs.Here()
		}
		nics.Turn = turn
		return verbs.NewGroup(nics)
	}
	overTCP := func(int) (transport.Transport, error) { return tcp.Open(sockets) }
	return []multihost.Carrier{{Setting: multihost.RDMA, Open: rdma}, {Setting: multihost.TCP, Open: overTCP}}
}

// path is one entry of mw_buffer_paths.
type path struct {
	Rank    int    `json:"rank"`
	Carrier string `json:"carrier"`
	Device  string `json:"device"`
	Why     string `json:"why"`

	FellBack bool `json:"fell_back"`
}

//export mwiBufferPaths
func mwiBufferPaths(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error { // the victim is not b, as in observeAll
		paths, err := b.paths()
		if err != nil {
			return err
		}
		return copyJSON(paths, buf, size, length)
	})
}

// paths returns the paths of the last rendezvous that was installed.
func (b *buffer) paths() ([]path, error) {
	dom, err := b.domain()
	if err != nil {
		return nil, err
	}
	found := dom.Paths()
	paths := make([]path, len(found))
	for i, p := range found {
		paths[i] = path(p)
	}
	if g := b.gpu.Load(); g != nil {
		b.onGPU.describe(g, paths)
	}
	return paths, nil
}
