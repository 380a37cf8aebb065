package main

// #include "internal.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
	"github.com/moewire/moewire/core/node"
)

// buffer is a mw_buffer_t.
type buffer struct {
	*node.Buffer
	poisonable
	id       uint64
	tensors  tensors
	memories memories
}

var buffers = newTable[*buffer]("buffer")

func (b *buffer) poison(err error) {
	b.poisonable.poison(err)
	b.Abandon(err)
}

//export mwiBufferCreate
func mwiBufferCreate(config *C.mw_config_t, id *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		cfg, err := configOf(config)
		if err != nil {
			return err
		}
		b := &buffer{id: buffers.next(), tensors: tensorsOf(&cfg)}
		if b.id > maxBuffers {
			return invalid("this process has made, or tried to make, %d buffers, and handles have no room for more", maxBuffers)
		}
		ensureProcs()
		cfg.Name = fmt.Sprintf("buffer %d", b.id)
		if b.Buffer, err = node.New(cfg); err != nil {
			return err
		}
		buffers.put(b.id, b)
		*id = C.uint64_t(b.id)
		return nil
	})
}

//export mwiBufferMetadata
func mwiBufferMetadata(id uint64, buf unsafe.Pointer, size uint64, length *C.uint64_t) C.mw_status_t {
	return on(buffers, id, func(b *buffer) error { return copyOut(b.Metadata(), buf, size, length) })
}

// copyOut writes data and its length, or only the length if buf is NULL.
func copyOut(data []byte, buf unsafe.Pointer, size uint64, length *C.uint64_t) error {
	if buf != nil && size < uint64(len(data)) {
		*length = C.uint64_t(len(data))
		return invalid("cap is %d, needed %d", size, len(data))
	}
	if buf != nil {
		copy(unsafe.Slice((*byte)(buf), len(data)), data)
	}
	*length = C.uint64_t(len(data))
	return nil
}

//export mwiBufferClose
func mwiBufferClose(id uint64) C.mw_status_t {
	b, err := buffers.take(id)
	if err != nil {
		return report(err)
	}
	return guard(nil, func() error {
		b.memories.forget()
		err := b.Close()
		if err != nil { // the caller closes it again
			buffers.put(id, b)
		}
		return err
	})
}

func shapeOf(s *C.mw_shape_t) layout.Shape {
	return layout.Shape{
		MaxTokens: int64(s.num_max_tokens_per_rank), Hidden: int64(s.hidden),
		NumRanks: int64(s.num_ranks), NumExperts: int64(s.num_experts),
		OutputType: outputType(s.flags&C.MW_SHAPE_FP32_OUTPUTS != 0),
		Flat:       s.flags&C.MW_SHAPE_FLAT != 0, Columns: columnsOf(s),
	}
}

// columnsOf are the widths of a shape's columns.
func columnsOf(shape *C.mw_shape_t) (widths [layout.NumColumns]int64) {
	widths[layout.ColumnTopkIdx], widths[layout.ColumnTopkWeights] = 8*int64(shape.num_topk), 4*int64(shape.num_topk)
	for i, n := range shape.extra_row_bytes {
		widths[layout.ColumnExtra+i] = int64(n)
	}
	return widths
}

//export mwiSizeHint
func mwiSizeHint(shape *C.mw_shape_t, numBytes *C.uint64_t) C.mw_status_t {
	return guard(nil, func() error {
		if err := checkShapeFlags(shape); err != nil {
			return err
		}
		if shape.reserved != 0 {
			return invalid("shape->reserved is %d, allowed 0", uint32(shape.reserved))
		}
		n, err := node.SizeHint(shapeOf(shape), int(shape.num_slots))
		if err != nil {
			return err
		}
		*numBytes = C.uint64_t(n)
		return nil
	})
}

func checkShapeFlags(shape *C.mw_shape_t) error {
	const known = C.MW_SHAPE_FP32_OUTPUTS | C.MW_SHAPE_FLAT
	switch {
	case shape.flags&^known != 0:
		return invalid("shape->flags is %#x, allowed bits %#x", uint32(shape.flags), known)
	case shape.flags&C.MW_SHAPE_FLAT == 0 && (shape.num_topk != 0 || shape.extra_row_bytes != [protocol.NumExtras]C.uint32_t{}):
		return invalid("num_topk and extra_row_bytes are %d and %v, allowed 0 without MW_SHAPE_FLAT", int64(shape.num_topk), shape.extra_row_bytes)
	}
	return inRange(limits.Range{Name: limits.TopK.Name, Most: limits.TopK.Most}, int64(shape.num_topk)) // 0: no routing
}
