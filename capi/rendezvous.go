package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

//export mwiBufferUpdate
func mwiBufferUpdate(id uint64) C.mw_status_t { return on(buffers, id, (*buffer).Update) }

//export mwiBufferConnect
func mwiBufferConnect(id uint64, all *C.mw_bytes_t, numRanks uint32, timeoutUs int64) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		timeout, err := micros("timeout_us", timeoutUs)
		if err != nil {
			return err
		}
		if timeout < 0 {
			timeout = node.ConnectTimeout
		}
		if timeout == 0 {
			return invalid("timeout_us is 0, allowed -1 (%v), 1 and more", node.ConnectTimeout)
		}
		if int(numRanks) != b.NumRanks() { // checked before any byte there is read
			return invalid("num_ranks is %d, the buffer was created for %d", numRanks, b.NumRanks())
		}
		metas, err := copyMetadata(unsafe.Slice(all, numRanks))
		if err != nil {
			return err
		}
		return b.Connect(metas, timeout)
	})
}

// copyMetadata returns nil for ranks that are absent.
func copyMetadata(all []C.mw_bytes_t) ([][]byte, error) {
	metas := make([][]byte, len(all))
	for r, m := range all {
		if err := inRangeAs(fmt.Sprintf("all[%d].num_bytes", r), limits.Range{Most: 1 << 20}, int64(min(uint64(m.num_bytes), math.MaxInt64))); err != nil {
			return nil, err
		}
		data, err := view[byte](fmt.Sprintf("all[%d]", r), uint64(m.address), int64(m.num_bytes))
		if err != nil {
			return nil, err
		}
		metas[r] = append([]byte(nil), data...)
	}
	return metas, nil
}

//export mwiBufferInstall
func mwiBufferInstall(id uint64) C.mw_status_t { return on(buffers, id, (*buffer).Install) }

//export mwiBufferMembers
func mwiBufferMembers(id uint64, out *C.mw_members_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error {
		ranks, epoch, lost, err := b.Membership()
		if err != nil {
			return err
		}
		out.ranks, out.epoch, out.num_lost = C.uint64_t(ranks.Word()), C.uint32_t(epoch), C.uint64_t(lost)
		return nil
	})
}
