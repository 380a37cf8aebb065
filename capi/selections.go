package main

// #include "internal.h"
import "C"

import "math"

const (
	idsInt32    = C.MW_TOPK_IDX_INT32
	weightsBF16 = C.MW_TOPK_WEIGHTS_BF16
	weightsFP16 = C.MW_TOPK_WEIGHTS_FP16
	// selectionFlags say how ids and weights are stored.
	selectionFlags = idsInt32 | weightsBF16 | weightsFP16
)

// selections turns ids and weights into the types that the core takes. It converts types
// other than int64 and float32 into memory that later calls reuse.
type selections struct {
	ids     []int64
	weights []float32
}

func (s *selections) readIDs(flags uint32, address uint64, n int64) ([]int64, error) {
	if flags&idsInt32 == 0 {
		return view[int64]("topk_idx", address, n)
	}
	given, err := view[int32]("topk_idx", address, n)
	s.ids = s.ids[:0]
	for _, id := range given {
		s.ids = append(s.ids, int64(id))
	}
	return s.ids, err
}

func (s *selections) readWeights(flags uint32, address uint64, n int64) ([]float32, error) {
	widen := fromBF16
	switch flags & (weightsBF16 | weightsFP16) {
	case 0:
		return view[float32]("topk_weights", address, n)
	case weightsFP16:
		widen = fromFP16
	case weightsBF16 | weightsFP16:
		return nil, invalid("args->flags is %#x: MW_TOPK_WEIGHTS_BF16 and MW_TOPK_WEIGHTS_FP16 are not allowed together", flags)
	}
	given, err := view[uint16]("topk_weights", address, n)
	s.weights = s.weights[:0]
	for _, bits := range given {
		s.weights = append(s.weights, widen(bits))
	}
	return s.weights, err
}

func refuseOnGPU(flags uint32) error {
	if flags&selectionFlags != 0 {
		return invalid("args->flags is %#x: %#x are not possible with MW_DEVICE_CUDA", flags, flags&selectionFlags)
	}
	return nil
}

func fromBF16(bits uint16) float32 { return math.Float32frombits(uint32(bits) << 16) }

// fromFP16 is exact: a float32 has more bits of each kind.
func fromFP16(bits uint16) float32 {
	const exponentBits, fractionBits = 5, 10
	sign, exponent, fraction := uint32(bits>>15)<<31, uint32(bits>>fractionBits)&(1<<exponentBits-1), uint32(bits)&(1<<fractionBits-1)
	switch exponent {
	case 0: // zero, or a subnormal number
		small := float32(fraction) / (1 << 24)
		return math.Float32frombits(math.Float32bits(small) | sign)
	case 1<<exponentBits - 1: // infinity, or not a number
		return math.Float32frombits(sign | 0xff<<23 | fraction<<(23-fractionBits))
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<(23-fractionBits))
}
