package main

// #include "internal.h"
import "C"

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/store/client"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/rights"
	"github.com/moewire/moewire/core/wire"
)

// maxNumber bounds the counts of configurations that are counts of connections or requests.
const maxNumber = 65535

// storeConfigOf reads the configuration of a client.
func storeConfigOf(c *C.mw_store_config_t) (cfg client.Config, err error) {
	if err := inRanges([]ranged{
		{choice("num_requests", 0, maxNumber), int64(c.num_requests)},
		{choice("transport", C.MW_TRANSPORT_AUTO, C.MW_TRANSPORT_TCP), int64(c.transport)},
		{choice("reserved", 0, 0), int64(c.reserved)},
		{choice("timeout_us", 0, time.Hour.Microseconds()), int64(c.timeout_us)},
		{choice("connect_timeout_us", 0, time.Hour.Microseconds()), int64(c.connect_timeout_us)},
	}); err != nil {
		return cfg, err
	}
	cfg.Timeout, cfg.Connect = fromMicros(c.timeout_us), fromMicros(c.connect_timeout_us)
	cfg.Requests, cfg.Carrier = int(c.num_requests), client.Carrier(c.transport)
	if cfg.Protection, err = protectionOf(c.protection); err != nil {
		return cfg, err
	}
	if cfg.Servers, err = serversOf(&c.servers); err != nil {
		return cfg, err
	}
	if err := namespaceOf(c, &cfg.Namespace); err != nil {
		return cfg, err
	}
	cfg.Keys, err = keyringOf(c.key_source, &c.keys, rights.Parse)
	return cfg, err
}

// fromMicros is a time of the ABI that is in its range.
func fromMicros(us C.int64_t) time.Duration { return time.Duration(us) * time.Microsecond }

func protectionOf(p C.uint32_t) (wire.Protection, error) {
	switch p {
	case C.MW_PROTECTION_DIGEST:
		return wire.ProtectDigest, nil
	case C.MW_PROTECTION_ENCRYPT:
		return wire.ProtectEncrypt, nil
	}
	return 0, invalid("config->protection is %d, allowed MW_PROTECTION_DIGEST and MW_PROTECTION_ENCRYPT", uint32(p))
}

func serversOf(b *C.mw_bytes_t) (servers []string, err error) {
	text, err := textOf("config->servers", b)
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(text, ",") {
		name = strings.TrimSpace(name)
		host, port, found := cutPort(name)
		if !found || host == "" || !isPort(port) || port == "0" {
			return nil, invalid("config->servers has %.64q, allowed is host:port, such as 127.0.0.1:9900 or [fe80::1]:9900", name)
		}
		servers = append(servers, name)
	}
	return servers, nil
}

func cutPort(name string) (host, port string, found bool) {
	at := strings.LastIndexByte(name, ':')
	if at < 0 {
		return name, "", false
	}
	return name[:at], name[at+1:], true
}

// isPort reports whether a text is the number of a port. Ports by name are no use: the same name may be another one on each host.
func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

func namespaceOf(c *C.mw_store_config_t, n *message.Namespace) error {
	for _, f := range []struct {
		name string
		from *C.mw_bytes_t
		to   *string
	}{
		{"model", &c.model, &n.Model},
		{"weights", &c.weights, &n.Weights},
		{"dtype", &c.dtype, &n.DType},
		{"layout", &c.layout, &n.Layout},
		{"chunk", &c.chunk, &n.Chunk},
		{"parallel", &c.parallel, &n.Parallel},
		{"salt", &c.salt, &n.Salt},
	} {
		text, err := textOf("config->"+f.name, f.from)
		if err != nil {
			return err
		}
		*f.to = text
	}
	return nil
}

// asked is the range of a field of a request.
func asked(name string, least, most int64) limits.Range {
	return limits.Range{Name: "request->" + name, Least: least, Most: most}
}

// blocksOf reads a request for blocks. Its pieces are the caller's memory.
func blocksOf(r *C.mw_store_request_t) (out client.Request, err error) {
	if err := inRanges([]ranged{
		{asked("num_keys", 1, message.MaxKeys), int64(r.num_keys)},
		{asked("num_pieces", 0, maxPieces), int64(r.num_pieces)},
		{asked("hold_us", 0, math.MaxInt64/1000), int64(r.hold_us)},
		{asked("timeout_us", 0, time.Hour.Microseconds()), int64(r.timeout_us)},
		{asked("key_bytes", 0, message.MaxKeyBytes), int64(r.key_bytes)},
		{asked("reserved", 0, 0), int64(r.reserved)},
	}); err != nil {
		return out, err
	}
	out = client.Request{Op: message.Code(r.op), For: fromMicros(r.hold_us), Timeout: fromMicros(r.timeout_us)}
	if r.op > math.MaxUint8 {
		return out, invalid("request->op is %d, allowed MW_STORE_PUT to MW_STORE_PIN", uint32(r.op))
	}
	if out.Keys, err = keysOf(r); err != nil {
		return out, err
	}
	if out.Parent, err = sliceOf("request->parent", r.parent, message.MaxKeyBytes); err != nil {
		return out, err
	}
	if out.Op == message.Put || out.Op == message.Get {
		out.Buffers, err = piecesOf(r)
	}
	return out, err
}

// keysOf are the keys of a request: the caller's memory.
func keysOf(r *C.mw_store_request_t) ([][]byte, error) {
	if r.key_bytes == 0 {
		return slicesOf("request->keys", uint64(r.keys), int64(r.num_keys), message.MaxKeyBytes)
	}
	n := int(r.key_bytes)
	all, err := view[byte]("request->keys", uint64(r.keys), int64(r.num_keys)*int64(n))
	if err != nil {
		return nil, err
	}
	keys := make([][]byte, r.num_keys)
	for i := range keys {
		keys[i] = all[i*n : (i+1)*n : (i+1)*n]
	}
	return keys, nil
}

// maxPieces is how many pieces a request has at most.
const maxPieces = 1 << 20

// piecesOf are the pieces of a request, by key.
func piecesOf(r *C.mw_store_request_t) ([][][]byte, error) {
	all, err := slicesOf("request->pieces", uint64(r.pieces), int64(r.num_pieces), message.MaxBlockBytes)
	if err != nil {
		return nil, err
	}
	buffers := make([][][]byte, r.num_keys)
	if r.pieces_per_key == 0 {
		if r.num_pieces != r.num_keys {
			return nil, invalid("request->num_pieces is %d, allowed %d without pieces_per_key", uint32(r.num_pieces), uint32(r.num_keys))
		}
		for i := range buffers {
			buffers[i] = all[i : i+1 : i+1]
		}
		return buffers, nil
	}
	counts, err := view[C.uint32_t]("request->pieces_per_key", uint64(r.pieces_per_key), int64(r.num_keys))
	if err != nil {
		return nil, err
	}
	for i, n := range counts {
		if int64(n) > int64(len(all)) {
			return nil, invalid("request->pieces_per_key sum to more than num_pieces, %d", uint32(r.num_pieces))
		}
		buffers[i], all = all[:n:n], all[n:]
	}
	if len(all) > 0 {
		return nil, invalid("request->pieces_per_key sum to %d, allowed num_pieces, %d", int(r.num_pieces)-len(all), uint32(r.num_pieces))
	}
	return buffers, nil
}

// slicesOf is an array of mw_bytes_t as slices of the caller's memory.
func slicesOf(name string, address uint64, n, most int64) ([][]byte, error) {
	given, err := view[C.mw_bytes_t](name, address, n)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, n)
	for i := range given {
		if out[i], err = sliceOf(name, given[i], most); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func sliceOf(name string, b C.mw_bytes_t, most int64) ([]byte, error) {
	if uint64(b.num_bytes) > uint64(most) {
		return nil, invalid("%s has one of %d bytes, allowed 0 to %d", name, uint64(b.num_bytes), most)
	}
	return view[byte](name, uint64(b.address), int64(b.num_bytes))
}
