package main

// #include "internal.h"
import "C"

import (
	"unsafe"

	"github.com/moewire/moewire/core/group/multihost"
	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/telemetry"
)

//export mwiBufferLinks
func mwiBufferLinks(id uint64, out *C.mw_link_t, capacity uint32, count *C.uint32_t) C.mw_status_t {
	return observeAll(id, func(b *buffer, _ node.Observed) error {
		if capacity == 0 {
			return invalid("capacity is 0, allowed 1 and more")
		}
		remote, err := b.RemoteRanks()
		if err != nil {
			return err
		}
		remote = remote[:min(len(remote), int(capacity))]
		size := uintptr(out.size) // the size of the caller's elements; checked by the shim
		for i := range remote {
			element := unsafe.Add(unsafe.Pointer(out), uintptr(i)*size)
			putLink(unsafe.Slice((*byte)(element), size), &remote[i])
		}
		*count = C.uint32_t(len(remote))
		return nil
	})
}

// putLink writes an element as far as the caller has room.
func putLink(to []byte, f *multihost.RemoteRank) {
	l := C.mw_link_t{
		size: C.uint32_t(len(to)), rank: C.uint32_t(f.Rank), carrier: C.uint32_t(telemetry.CarrierNumber(f.Carrier)), state: C.uint32_t(f.State),
		num_messages_sent: C.uint64_t(f.SentMessages), num_bytes_sent: C.uint64_t(f.SentBytes),
		num_messages_received: C.uint64_t(f.ReceivedMessages), num_bytes_received: C.uint64_t(f.ReceivedBytes),
		num_blocked: C.uint64_t(f.Blocked), num_dropped: C.uint64_t(f.Dropped), num_ignored: C.uint64_t(f.Ignored),
		num_credits: C.uint32_t(f.Credits), num_max_credits: C.uint32_t(f.MaxCredits),
		heard_ns: C.int64_t(f.Heard), num_beats: C.uint64_t(f.Beats), clock_ahead_ns: C.int64_t(f.Ahead),
		num_reconnects: C.uint64_t(f.Reconnects),
	}
	clear(to[copy(to, unsafe.Slice((*byte)(unsafe.Pointer(&l)), unsafe.Sizeof(l))):])
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
	return guard(nil, func() error { // b is not made unusable, as in observeAll
		found, err := b.Paths()
		if err != nil {
			return err
		}
		paths := make([]path, len(found))
		for i, p := range found {
			paths[i] = path(p)
		}
		return copyJSON(paths, buf, size, length)
	})
}
