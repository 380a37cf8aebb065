package layout

import (
	"fmt"
	"math"
	"math/bits"
)

// PageBytes is the granularity of memory that a kernel hands out; RegionBytes
// that of a huge page on x86-64 and arm64 with 4 KiB base pages.
const (
	PageBytes   = 4 << 10
	RegionBytes = 2 << 20
)

// product multiplies non-negative factors and reports whether it fits int64.
func product(factors ...int64) (int64, bool) {
	p := uint64(1)
	for _, f := range factors {
		if f < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(p, uint64(f))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		p = lo
	}
	return int64(p), true
}

// alignUp rounds n >= 0 up to a multiple of a power of two.
func alignUp(n, align int64) (int64, bool) {
	if n > math.MaxInt64-(align-1) {
		return 0, false
	}
	return (n + align - 1) &^ (align - 1), true
}

// cursor hands out consecutive aligned regions of one slab.
type cursor struct {
	off int64
	err error
}

func (c *cursor) take(name string, align int64, factors ...int64) int64 {
	if c.err != nil {
		return 0
	}
	begin, ok := alignUp(c.off, align)
	size, fits := product(factors...)
	if !ok || !fits || size > math.MaxInt64-begin {
		c.err = fmt.Errorf("%s does not fit in 63 bits", name)
		return 0
	}
	c.off = begin + size
	return begin
}
