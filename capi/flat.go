package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/ep/layout"
	"github.com/moewire/moewire/core/ep/protocol"
)

// readColumns reads the columns that come with flat rows, and the weights for sums.
func (d *dispatch) readColumns(a *C.mw_dispatch_args_t) (err error) {
	if a.flags&C.MW_DISPATCH_FLAT == 0 {
		return d.readPreReduceWeights(a)
	}
	d.args.Flat, d.args.NoRouting = true, a.flags&C.MW_DISPATCH_NO_ROUTING != 0
	t := int64(a.num_tokens)
	if d.args.NoRouting && a.topk_weights != 0 {
		return errWeightsWithoutRouting
	}
	if !d.args.NoRouting {
		if d.args.TopkWeights, err = d.selections.readWeights(uint32(a.flags), uint64(a.topk_weights), t*int64(a.num_topk)); err != nil {
			return err
		}
	}
	for i, name := range extraNames {
		width, err := extraWidth(a, i)
		if err != nil {
			return err
		}
		if d.args.Extra[i], err = view[byte](name, uint64(a.extra[i]), t*width); err != nil {
			return err
		}
		d.args.ExtraRowBytes[i] = int(width)
	}
	return nil
}

var errWeightsWithoutRouting = invalid("topk_weights is given, allowed 0 with MW_DISPATCH_NO_ROUTING")

// extraWidth returns the width of an extra column, after checking it.
func extraWidth(a *C.mw_dispatch_args_t, i int) (int64, error) {
	width := int64(a.extra_row_bytes[i])
	if err := inRange(extraWidthNames[i], width, 0, protocol.MaxExtraBytes); err != nil {
		return 0, err
	}
	if width == 0 && a.extra[i] != 0 {
		return 0, invalid("%s is given and its extra_row_bytes is 0, allowed 1 to %d", extraNames[i], protocol.MaxExtraBytes)
	}
	return width, nil
}

var extraNames = [protocol.NumExtras]string{"extra[0]", "extra[1]", "extra[2]", "extra[3]"}

// These names are not built at every call, because that would allocate.
var extraWidthNames = [protocol.NumExtras]string{
	"extra_row_bytes of extra[0]", "extra_row_bytes of extra[1]", "extra_row_bytes of extra[2]", "extra_row_bytes of extra[3]",
}

// aloneButForWeights checks that packed rows have no columns, except weights for sums.
func aloneButForWeights(a *C.mw_dispatch_args_t) error {
	if a.extra != [protocol.NumExtras]C.uint64_t{} || a.extra_row_bytes != [protocol.NumExtras]C.uint32_t{} {
		return invalid("extra or extra_row_bytes is given, allowed 0 without MW_DISPATCH_FLAT")
	}
	if a.flags&C.MW_DISPATCH_PRE_REDUCE == 0 && a.topk_weights != 0 {
		return invalid("topk_weights is given, allowed 0 without MW_DISPATCH_FLAT and MW_DISPATCH_PRE_REDUCE")
	}
	return nil
}

func (d *dispatch) readPreReduceWeights(a *C.mw_dispatch_args_t) error {
	err := aloneButForWeights(a)
	if d.args.PreReduce = a.flags&C.MW_DISPATCH_PRE_REDUCE != 0; !d.args.PreReduce || err != nil {
		return err
	}
	d.args.TopkWeights, err = d.selections.readWeights(uint32(a.flags), uint64(a.topk_weights), int64(a.num_tokens)*int64(a.num_topk))
	return err
}

// writeColumns gives the caller the addresses of the columns that exist.
func (d *dispatch) writeColumns() {
	if !d.res.Flat {
		return
	}
	address := func(i int) C.uint64_t {
		if len(d.res.Columns[i]) == 0 {
			return 0
		}
		return C.uint64_t(addressOf(d.res.Columns[i]))
	}
	d.out.recv_topk_idx = address(layout.ColumnTopkIdx)
	d.out.recv_topk_weights = address(layout.ColumnTopkWeights)
	for i := range d.out.recv_extra {
		d.out.recv_extra[i] = address(layout.ColumnExtra + i)
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
