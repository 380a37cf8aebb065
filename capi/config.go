package main

// #include "internal.h"
import "C"

import (
	"math"
	"strings"
	"time"

	"github.com/moewire/moewire/core/device/cpu"
	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/group/shm"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/transport/tcp"
	"github.com/moewire/moewire/core/wire"
)

// configOf reads a configuration. What it does not check here, node.New does.
func configOf(c *C.mw_config_t) (cfg node.Config, err error) {
	if err := checkConfig(c); err != nil {
		return cfg, err
	}
	cfg = node.Config{
		Rank: int(c.rank), NumRanks: int(c.num_ranks),
		Config: ep.Config{
			NumBytes: int64(c.num_bytes), NumSlots: int(c.num_slots),
			Deterministic: c.flags&C.MW_CONFIG_DETERMINISTIC != 0,
			DebugFill:     c.flags&C.MW_CONFIG_DEBUG_FILL != 0,
			NoRecord:      c.flags&C.MW_CONFIG_NO_RECORD != 0,
			SpinFor:       time.Duration(c.spin_us) * time.Microsecond,
			EventCount:    eventCount(),
		},
		Kernels: cpu.Options{
			Width: int(c.vector_width), Stores: cpu.Stores(c.stores), Prefetch: int(c.prefetch), Threads: int(c.num_threads),
		},
		Pages: shm.Pages{Huge: shm.HugePages(c.huge_pages), Local: c.numa == C.MW_NUMA_LOCAL},
	}
	keep(&err, &cfg.SlowAfter)(micros("config->slow_after_us", int64(c.slow_after_us)))
	keep(&err, &cfg.CUDA)(cudaOf(c))
	keep(&err, &cfg.Hosts)(hostsOf(c))
	return cfg, err
}

// checkConfig checks what Go does not have: numbers that stand for types that are narrower there,
// -1 for any negative time, and numbers that only C has.
func checkConfig(c *C.mw_config_t) error {
	const known = C.MW_CONFIG_DEBUG_FILL | C.MW_CONFIG_NO_RECORD | C.MW_CONFIG_DETERMINISTIC | C.MW_CONFIG_RDMA_DC |
		C.MW_CONFIG_KILL_FENCED
	if c.flags&^known != 0 {
		return invalid("config->flags is %#x, allowed bits %#x", uint32(c.flags), uint32(known))
	}
	if most := limits.NumBytes.Most; uint64(c.num_bytes) > uint64(most) { // as an int64 it may be negative
		return invalid("config->num_bytes is %d, allowed %s", uint64(c.num_bytes), limits.NumBytes)
	}
	return inRanges([]ranged{
		{choice("numa", C.MW_NUMA_NONE, C.MW_NUMA_LOCAL), int64(c.numa)},
		{field(limits.SpinUs), int64(c.spin_us)},
		{choice("transport", C.MW_TRANSPORT_AUTO, C.MW_TRANSPORT_RDMA), int64(c.transport)},
		{choice("protection", C.MW_PROTECTION_DIGEST, C.MW_PROTECTION_ENCRYPT), int64(c.protection)},
		{choice("tcp_zero_copy", C.MW_ZERO_COPY_AUTO, C.MW_ZERO_COPY_OFF), int64(c.tcp_zero_copy)},
		{choice("device", C.MW_DEVICE_CPU, C.MW_DEVICE_CUDA), int64(c.device)},
		{field(limits.DeviceOrdinal), int64(c.device_ordinal)},
		{choice("reserved", 0, 0), int64(c.reserved)},
	})
}

// cudaOf reads where rows lie. It returns nil for the CPU.
func cudaOf(c *C.mw_config_t) (*node.CUDA, error) {
	if c.device == C.MW_DEVICE_CPU {
		if c.flags&C.MW_CONFIG_KILL_FENCED != 0 {
			return nil, invalid("config->flags is %#x: MW_CONFIG_KILL_FENCED (%#x) is possible with MW_DEVICE_CUDA alone; on the CPU no call waits for a rank that is out",
				uint32(c.flags), uint32(C.MW_CONFIG_KILL_FENCED))
		}
		if c.device_ordinal != 0 {
			return nil, invalid("config->device_ordinal is %d, allowed 0 without MW_DEVICE_CUDA", uint32(c.device_ordinal))
		}
		return nil, nil
	}
	if c.num_bytes == 0 {
		return nil, invalid("config->num_bytes is 0, allowed with MW_DEVICE_CUDA: what mw_buffer_size_hint gives")
	}
	g := &node.CUDA{Ordinal: int(c.device_ordinal), KillFenced: c.flags&C.MW_CONFIG_KILL_FENCED != 0}
	var err error
	var nvrtc string
	keep(&err, &g.Driver)(textOf("config->cuda_driver", &c.cuda_driver))
	keep(&err, &nvrtc)(textOf("config->cuda_nvrtc", &c.cuda_nvrtc))
	keep(&err, &g.Code)(codeOf(c.cuda_code))
	g.NVRTC = placesOf(nvrtc)
	return g, err
}

// maxCodeBytes bounds the code of kernels that a caller gives.
const maxCodeBytes = 64 << 20

func codeOf(b C.mw_bytes_t) ([]byte, error) {
	if err := inRange(choice("cuda_code.num_bytes", 0, maxCodeBytes), int64(min(uint64(b.num_bytes), math.MaxInt64))); err != nil {
		return nil, err
	}
	code, err := view[byte]("config->cuda_code", uint64(b.address), int64(b.num_bytes))
	return append([]byte(nil), code...), err
}

// placesOf reads the places of a compiler, separated by colons.
func placesOf(nvrtc string) []string {
	return strings.FieldsFunc(nvrtc, func(r rune) bool { return r == ':' })
}

// hostsOf reads how a rank reaches the others.
func hostsOf(c *C.mw_config_t) (h node.Hosts, err error) {
	h = node.Hosts{
		Transport: multihost.Setting(c.transport), Protection: wire.ProtectDigest,
		RingBytes: int64(min(uint64(c.ring_bytes), math.MaxInt64)), ZeroCopy: tcp.ZeroCopy(c.tcp_zero_copy),
	}
	if c.protection == C.MW_PROTECTION_ENCRYPT {
		h.Protection = wire.ProtectEncrypt
	}
	keep(&err, &h.UnresponsiveAfter)(micros("config->unresponsive_after_us", int64(c.unresponsive_after_us)))
	keep(&err, &h.Host)(textOf("config->host", &c.host))
	keep(&err, &h.Listen)(textOf("config->listen", &c.listen))
	keep(&err, &h.RDMA)(rdmaOf(c.flags&C.MW_CONFIG_RDMA_DC != 0, c.rdma_devices, c.rdma_gid, c.rdma_near))
	keep(&err, &h.Keys)(text("config->keys", c.keys))
	keep(&err, &h.KeyFile)(textOf("config->key_file", &c.key_file))
	return h, err
}

// rdmaOf reads the RDMA settings of a buffer or a fabric.
func rdmaOf(dc bool, devices, gid, near C.mw_bytes_t) (r node.RDMA, err error) {
	r.DC = dc
	keep(&err, &r.Devices)(textOf("config->rdma_devices", &devices))
	keep(&err, &r.GID)(textOf("config->rdma_gid", &gid))
	keep(&err, &r.Near)(textOf("config->rdma_near", &near))
	return r, err
}

// maxTextBytes bounds the texts of a configuration.
const maxTextBytes = 64 << 10

// text is the caller's text, not a copy.
func text(name string, b C.mw_bytes_t) ([]byte, error) {
	if uint64(b.num_bytes) > maxTextBytes {
		return nil, invalid("%s has %d bytes, allowed 0 to %d", name, uint64(b.num_bytes), maxTextBytes)
	}
	return view[byte](name, uint64(b.address), int64(b.num_bytes))
}

// textOf returns a copy of the caller's text.
func textOf(name string, b *C.mw_bytes_t) (string, error) {
	v, err := text(name, *b)
	return string(v), err
}
