package main

// #include "internal.h"
import "C"

import (
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/limits"
)

// readWidths reads how wide the columns are that come with flat rows, after checking which
// columns may be given.
func (d *dispatch) readWidths(a *C.mw_dispatch_args_t) error {
	if !d.args.Flat {
		return aloneButForWeights(a)
	}
	if d.args.NoRouting && a.topk_weights != 0 {
		return errWeightsWithoutRouting
	}
	for i := range extraNames {
		width, err := extraWidth(a, i)
		if err != nil {
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
	if err := inRangeAs(extraWidthNames[i], limits.ExtraRowBytes, width); err != nil {
		return 0, err
	}
	if width == 0 && a.extra[i] != 0 {
		return 0, invalid("%s is given and its extra_row_bytes is 0, allowed 1 to %d", extraNames[i], limits.ExtraRowBytes.Most)
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
