package main

import (
	"math"
	"time"
	"unsafe"

	"github.com/moewire/moewire/core/limits"
)

// at turns an address from C into a pointer. The memory is not Go's, so the collector
// does not move or free it; the indirection satisfies vet.
func at(address uint64) unsafe.Pointer {
	p := uintptr(address)
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

func addressOf(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}

// maxElements keeps every product of counts and sizes far from overflow.
const maxElements = 1 << 44

// view is the caller's memory as a slice of n elements.
func view[T any](name string, address uint64, n int64) ([]T, error) {
	switch {
	case n == 0:
		return nil, nil
	case n < 0 || n > maxElements:
		return nil, invalid("%s has %d elements, allowed 0 to %d", name, n, int64(maxElements))
	case address == 0:
		return nil, invalid("%s is NULL, and must have %d elements", name, n)
	case address > math.MaxUint64-uint64(n)*uint64(unsafe.Sizeof(*new(T))):
		return nil, invalid("%s is at %#x, and its %d elements do not fit in the address space", name, address, n)
	case address%uint64(unsafe.Alignof(*new(T))) != 0:
		return nil, invalid("%s is at %#x, which is not aligned to %d bytes", name, address, unsafe.Alignof(*new(T)))
	}
	return unsafe.Slice((*T)(at(address)), n), nil
}

// keep stores the converted value of one of several arguments, and notes its error if it
// is the first one: keep(&err, &to)(view(...)).
func keep[T any](first *error, to *T) func(T, error) {
	return func(value T, err error) {
		*to = value
		if *first == nil {
			*first = err
		}
	}
}

// inRange checks a number before it takes part in any product.
func inRange(r limits.Range, v int64) error { return inRangeAs(r.Name, r, v) }

// inRangeAs is inRange for a number that is not an argument but a part of one.
func inRangeAs(name string, r limits.Range, v int64) error {
	if err := r.CheckAs(name, v); err != nil {
		return invalid("%s", err)
	}
	return nil
}

// ranged is a number with its range.
type ranged struct {
	limits.Range
	v int64
}

func inRanges(all []ranged) error {
	for i := range all {
		if !all[i].Has(all[i].v) {
			return inRange(all[i].Range, all[i].v)
		}
	}
	return nil
}

// field is the range of a field of a configuration.
func field(r limits.Range) limits.Range {
	r.Name = "config->" + r.Name
	return r
}

// choice is the range of a field that says one of several constants.
func choice(name string, first, last int64) limits.Range {
	return limits.Range{Name: "config->" + name, Least: first, Most: last}
}

// micros turns a time of the ABI into a Duration; -1 means none.
func micros(name string, us int64) (time.Duration, error) {
	if us < -1 {
		return 0, invalid("%s is %d, allowed -1 (none), 0 and more", name, us)
	}
	if us == -1 {
		return -1, nil
	}
	if us > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64, nil
	}
	return time.Duration(us) * time.Microsecond, nil
}
