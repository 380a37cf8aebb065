package main

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestReadAllocatesNothing: the arguments of a call, packed or flat, become slices
// without a Go object.
func TestReadAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var numbers [64]int64 // where all tensors lie
	here := uint64(uintptr(unsafe.Pointer(&numbers)))
	var of tensors = hostTensors{}
	for _, flags := range []uintptr{0, flatFlag, flatFlag | noRoutingFlag} {
		a, d := argsOf((*dispatch).readWidths), new(dispatch)
		setNumber(&a.flags, flags)
		a.num_tokens, a.hidden, a.num_topk, a.num_max_tokens_per_rank, a.num_experts = 1, 8, 2, 4, 2
		for _, at := range []*uint64{ptr(&a.x), ptr(&a.topk_idx), ptr(&a.recv_count), ptr(&a.layout_range)} {
			*at = here
		}
		if flags&flatFlag != 0 {
			set(&a.extra[0], here)
			setNumber(&a.extra_row_bytes[0], 8)
		}
		if flags == flatFlag {
			set(&a.topk_weights, here)
		}
		require.NoError(t, d.read(a, of, 1))
		require.Zero(t, testing.AllocsPerRun(100, func() { _ = d.read(a, of, 1) }), "flags %d", flags)
	}
}

// As in moewire.h.
const flatFlag, noRoutingFlag = 32, 64

func argsOf[A any](func(*dispatch, *A) error) *A { return new(A) }

func ptr[T ~uint64](p *T) *uint64 { return (*uint64)(unsafe.Pointer(p)) }
