package main

// #include "internal.h"
import "C"

import (
	"encoding/binary"
	"encoding/json"
	"runtime/metrics"
	"sync/atomic"
	"unsafe"

	"github.com/moewire/moewire/core/ep"
	"github.com/moewire/moewire/core/telemetry"
)

// eventCount is the C variable that callers of this process watch.
func eventCount() *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&C.mwi_event_count))
}

// statistics are what mw_buffer_stats shows.
type statistics struct {
	telemetry.Stats
	Imbalance float64     `json:"expert_imbalance"` // fullest local expert over the mean; 0 without rows
	Remote    remoteStats `json:"remote"`
	GoObjects uint64      `json:"go_heap_allocations"`
	GoBytes   uint64      `json:"go_heap_bytes"`
}

func imbalance(rows []uint64) float64 {
	most, sum := uint64(0), uint64(0)
	for _, n := range rows {
		most, sum = max(most, n), sum+n
	}
	if sum == 0 {
		return 0
	}
	return float64(most) * float64(len(rows)) / float64(sum)
}

// observed is the core of a buffer, on the CPU or on CUDA, as the observing functions see
// it.
type observed interface {
	NumRanks() int
	Stats() (telemetry.Stats, error)
	Records(rank, last int) ([]telemetry.Record, error)
	Events(since uint64) ([]telemetry.Event, uint64)
	Counters() ep.Counters
}

func (b *buffer) observed() (observed, error) {
	if b.onGPU != nil {
		return b.gpuCore()
	}
	return b.core()
}

func statisticsOf(b *buffer, e observed) (statistics, error) {
	s, err := e.Stats()
	if err != nil {
		return statistics{}, err
	}
	remote, err := b.remoteStats()
	if err != nil {
		return statistics{}, err
	}
	heap := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(heap)
	return statistics{
		Stats: s, Imbalance: imbalance(s.Experts), Remote: remote,
		GoObjects: heap[0].Value.Uint64(), GoBytes: heap[1].Value.Uint64(),
	}, nil
}

// observe runs f with the core of a buffer, also of a buffer that a defect has closed.
func observe(id uint64, f func(observed) error) C.mw_status_t {
	return observeAll(id, func(_ *buffer, e observed) error { return f(e) })
}

func observeAll(id uint64, f func(*buffer, observed) error) C.mw_status_t {
	b, err := buffers.get(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error { // the victim is not b: a caller must be able to observe a buffer with a defect
		e, err := b.observed()
		if err != nil {
			return err
		}
		return f(b, e)
	})
}

//export mwiBufferStats
func mwiBufferStats(id uint64, buf *C.char, size uint64, length *C.uint64_t) C.mw_status_t {
	return observeAll(id, func(b *buffer, e observed) error {
		s, err := statisticsOf(b, e)
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
	return observe(id, func(e observed) error {
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
	return observe(id, func(e observed) error {
		events, latest := e.Events(since)
		return copyJSON(eventList{latest, events}, buf, size, length)
	})
}
