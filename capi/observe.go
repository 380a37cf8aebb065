package main

// #include "internal.h"
import "C"

import (
	"encoding/binary"
	"encoding/json"
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/node"
	"github.com/moewire/moewire/core/telemetry"
)

// eventCount is the C variable that callers of this process watch.
func eventCount() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&C.mwi_event_count))
}

// observe runs f with the core of a buffer, also of a buffer that a defect has closed.
func observe(id uint64, f func(node.Observed) error) C.mw_status_t {
	return observeAll(id, func(_ *buffer, e node.Observed) error { return f(e) })
}

func observeAll(id uint64, f func(*buffer, node.Observed) error) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error { // b is not made unusable: a caller must be able to observe a buffer with a defect
		e, err := b.Observe()
		if err != nil {
			return err
		}
		return f(b, e)
	})
}

//export mwiBufferStats
func mwiBufferStats(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return observeAll(id, func(b *buffer, _ node.Observed) error {
		s, err := b.Stats()
		if err != nil {
			return err
		}
		return copyJSON(s, buf, size, length)
	})
}

func copyJSON(v any, buf *C.char, size uint64, length *C.uint64_t) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return copyOut(data, unsafe.Pointer(buf), size, length)
}

//export mwiBufferTrace
func mwiBufferTrace(id uint64, rank uint32, out *C.mw_record_t, capacity uint32, count *C.uint32_t) C.mw_status_t {
	return observe(id, func(e node.Observed) error {
		if capacity == 0 {
			return invalid("capacity is 0, allowed 1 and more")
		}
		records, err := e.Records(int(rank), int(min(capacity, C.MW_MAX_RECORDS)))
		if err != nil {
			return err
		}
		size := int(out.size) // the size of the caller's elements; checked by the shim
		all := unsafe.Slice((*byte)(unsafe.Pointer(out)), size*len(records))
		for i := range records {
			records[i].Put(all[i*size:(i+1)*size], binary.NativeEndian.PutUint64)
		}
		*count = C.uint32_t(len(records))
		return nil
	})
}

// eventList is what mw_buffer_events shows.
type eventList struct {
	Latest uint64            `json:"latest"`
	Events []telemetry.Event `json:"events"`
}

//export mwiBufferEvents
func mwiBufferEvents(id, since uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return observe(id, func(e node.Observed) error {
		events, latest := e.Events(since)
		return copyJSON(eventList{latest, events}, buf, size, length)
	})
}
