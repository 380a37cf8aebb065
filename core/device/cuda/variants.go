package cuda

import (
	"github.com/moewire/moewire/core/ep/protocol"
	"github.com/moewire/moewire/core/group/rankset"
)

// What is chosen by an operation's shape: kernels with inner loops that are made for
// it, and how many threads a block has. Rows move 16 bytes at a time in every
// shape, because a hidden size is a multiple of 8; how many of such loads a
// thread has under way is the variant's (kernels/streams.cuh).

// The kernels know so many types: reduceOf, and kernels/cast.cuh.
var _ = [1]struct{}{protocol.Unknown - 5: {}}

// vectorValues are the bf16 values of one access.
const vectorValues = 8

// reduceOf is the kernel for the type of an operation's rows and for the way in
// which they are added up.
func reduceOf(flags protocol.Flags) int {
	switch fp32, runs := flags&protocol.FlagFP32Outputs != 0, flags&protocol.FlagPreReduce != 0; {
	case runs && fp32:
		return kernelReduceRunsFP32
	case runs:
		return kernelReduceRuns
	case fp32:
		return kernelReduceFP32
	}
	return kernelReduce
}

// Loads says how many loads a thread has under way.
type Loads int

// Narrow is for rows of one vector per thread, and sums of one or two terms, of which
// a thread makes two columns. Usual is four loads, Deep eight: few blocks cannot fill
// a multiprocessor with less. 0 is the choice by shape.
const (
	ByShape Loads = iota
	Narrow
	Usual
	Deep
)

// placeLoads for rows that take so many turns of a block. sparse: a multiprocessor has
// one block at most, so what its threads load together is all there is under way.
func placeLoads(turns uint32, sparse bool) Loads {
	switch {
	case turns <= 1:
		return Narrow
	case turns > 4 && sparse:
		return Deep
	}
	return Usual
}

// reduceLoads for sums of so many terms.
func reduceLoads(terms int32, turns uint32, sparse bool) Loads {
	switch {
	case terms <= 2 && turns > 1:
		return Narrow
	case terms > 4 && sparse:
		return Deep
	}
	return Usual
}

// rowTurns is how often a block of threads must load to move a row.
func rowTurns(hidden int32, threads uint32) uint32 {
	return (uint32(hidden)/vectorValues + threads - 1) / threads
}

// placeKernelOf has so many loads under way.
func placeKernelOf(l Loads) int {
	return variantOf(l, kernelPlaceNarrow, kernelPlace, kernelPlaceDeep)
}

// reduceKernelOf also goes by the type of the rows: only the usual one has variants.
func reduceKernelOf(flags protocol.Flags, l Loads) int {
	if kernel := reduceOf(flags); kernel != kernelReduce {
		return kernel
	}
	return variantOf(l, kernelReduceNarrow, kernelReduce, kernelReduceDeep)
}

func variantOf(l Loads, narrow, usual, deep int) int {
	switch l {
	case Narrow:
		return narrow
	case Deep:
		return deep
	}
	return usual
}

func (e *Engine) sparse(c *common) bool { return int(c.NumBlocks) <= e.d.NumSMs }

// placeKernel is for blocks of so many threads; reduceKernel, too.
func (e *Engine) placeKernel(c *common, threads uint32) int {
	if e.cfg.Loads != ByShape {
		return placeKernelOf(e.cfg.Loads)
	}
	return placeKernelOf(placeLoads(rowTurns(c.Hidden, threads), e.sparse(c)))
}

func (e *Engine) reduceKernel(c *common, threads uint32) int {
	if e.cfg.Loads != ByShape {
		return reduceKernelOf(c.Flags, e.cfg.Loads)
	}
	terms := c.TopK
	if c.Flags&protocol.FlagFlat != 0 {
		terms = min(terms, c.NumRanks)
	}
	return reduceKernelOf(c.Flags, reduceLoads(terms, rowTurns(c.Hidden, threads), e.sparse(c)))
}

// warpThreads run together. leastThreads of a block: one for each rank.
const (
	warpThreads  = 32
	leastThreads = (rankset.MaxRanks + warpThreads - 1) / warpThreads * warpThreads
)

// rowThreads is how many threads of most move a row: so many that each of them
// has the same number of vectors, or nearly, and that none is idle in between.
// 7168 values are 896 vectors: four for each of 224 threads, where with 256 half
// of them would wait for the last turn.
func rowThreads(hidden int32, most uint32) uint32 {
	vectors := max(1, uint32(hidden)/vectorValues)
	turns := (vectors + most - 1) / most
	threads := (vectors + turns - 1) / turns
	threads = (threads + warpThreads - 1) / warpThreads * warpThreads
	return min(most, max(threads, leastThreads))
}
