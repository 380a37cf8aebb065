package node

import (
	"bytes"
	"math/bits"
	"net/netip"
	"time"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/link"
	"github.com/moewire/moewire/core/telemetry"
	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/transport/verbs"
	"github.com/moewire/moewire/core/wire"
)

// Hosts says how ranks reach one another. A field that is not marked "own" is equal on
// all ranks.
type Hosts struct {
	Transport  multihost.Setting
	Protection wire.Protection // of the bytes that TCP carries; 0 means wire.ProtectDigest
	// Listen is where ranks of other hosts reach this one: an address, "ADDRESS:PORT", or
	// the name of an interface. own
	Listen string
	// Keys are one per line, "ID HEX" (docs/wire.md), the current one first; KeyFile is the
	// path of a file with them, which every Update reads again. Ranks of several hosts need
	// one of the two. The bytes of Keys stay the caller's.
	Keys    []byte
	KeyFile string
	// Host, if not empty, stands for the host's identity: ranks with different ones treat
	// each other as ranks of other hosts. own, for tests
	Host string
	// RingBytes is a power of two, the size of a ring: each remote rank has two per
	// direction. 0 means link.DefaultRingBytes.
	RingBytes int64
	// UnresponsiveAfter is how long a remote rank may be silent until it is suspected; 0
	// means multihost.DefaultBound.
	UnresponsiveAfter time.Duration
	RDMA              RDMA         // own
	ZeroCopy          tcp.ZeroCopy // own
}

// RDMA says which devices a rank may use for RDMA, and how. Empty texts leave the choice
// to the library.
type RDMA struct {
	Devices string // names with or without ports, separated by commas: "mlx5_0,mlx5_1:2"
	GID     string // on Ethernet, the port's address to send from: an index, a version, a network
	Near    string // what the device should be near to: a PCI address, or "node:N"
	DC      bool   // dynamically connected queue pairs, where both ports have them
}

// Config returns the settings of package verbs.
func (r RDMA) Config() (v verbs.Config, err error) {
	for _, f := range [...]struct {
		name, text string
		read       func(text string) error
	}{
		{"rdma_devices", r.Devices, func(s string) (err error) { v.Devices, err = verbs.ParseDevices(s); return err }},
		{"rdma_gid", r.GID, func(s string) (err error) { v.GID, err = verbs.ParseGID(s); return err }},
		{"rdma_near", r.Near, func(s string) (err error) { v.Near, err = verbs.ParsePlace(s); return err }},
	} {
		if err := f.read(f.text); err != nil {
			return v, wrong(f.name, " is %v", err)
		}
	}
	v.DC = r.DC
	return v, nil
}

// config makes the configuration of the rank's listeners, except for the settings of
// shared memory. The keys come last, so that no later failure leaves keys in memory.
func (h *Hosts) config() (cfg multihost.Config, err error) {
	cfg.Setting, cfg.Protection, cfg.Host = h.Transport, h.Protection, h.Host
	if err := h.bounds(&cfg); err != nil {
		return cfg, err
	}
	if cfg.Listen, err = listenOf(h.Listen); err != nil {
		return cfg, err
	}
	cfg.Words = []int64{layout.WaitsFor(), layout.Beat(), layout.Quiesced(), layout.Record() + telemetry.LeftOffset()}
	cfg.Moments = []int64{layout.Since()}
	nics, err := h.RDMA.Config()
	if err != nil {
		return cfg, err
	}
	if cfg.Keys, err = h.keyring(); err != nil {
		return cfg, err
	}
	cfg.Carriers = carriers(&cfg, tcp.Config{Protection: cfg.Protection, ZeroCopy: h.ZeroCopy}, nics)
	return cfg, nil
}

func (h *Hosts) bounds(cfg *multihost.Config) error {
	if n := h.RingBytes; n != 0 {
		if r := limits.RingBytes; !r.Has(n) || bits.OnesCount64(uint64(n)) != 1 {
			return wrong(r.Name, " is %d, allowed a power of two from %s, and 0", uint64(n), r)
		}
		cfg.Link = link.Config{RingBytes: n, NumMessages: link.DefaultNumMessages}
	}
	after := h.UnresponsiveAfter
	if r := limits.UnresponsiveUs; after != 0 && !within(r, after) {
		return wrong(r.Name, " is %d, allowed 0 (%v), and %s", micros(after), multihost.DefaultBound, r)
	}
	if cfg.Bound = after; after > 0 {
		cfg.Heartbeat = max(min(multihost.DefaultHeartbeat, after/8), time.Millisecond)
	}
	return nil
}

// micros shows a duration in microseconds, and any negative one as -1.
func micros(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Microseconds()
}

// keyring reads the keys. It returns nil if there are none. Its errors show no key.
func (h *Hosts) keyring() (*wire.Keyring, error) {
	switch {
	case h.KeyFile != "" && len(h.Keys) > 0:
		return nil, wrong("keys", " and key_file are both given, allowed is one of them")
	case h.KeyFile != "":
		ring, err := wire.NewKeyring(wire.FromFile(h.KeyFile))
		if err != nil {
			return nil, wrong("key_file", ": %v", err)
		}
		return ring, nil
	case len(h.Keys) > 0:
		ring, err := wire.NewFixedKeyring(bytes.Clone(h.Keys), nil) // a keyring wipes the bytes that it has read
		if err != nil {
			return nil, wrong("keys", ": %v", err)
		}
		return ring, nil
	}
	return nil, nil
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
