package cuda

// What is chosen by an operation's shape: kernels whose inner loops are made for
// it, and how many threads a block has. Rows move 16 bytes at a time in every
// shape, because a hidden size is a multiple of 8, and each thread has
// MW_LOADS of such loads under way (kernels/streams.cuh).

// vectorValues are the bf16 values of one access.
const vectorValues = 8

// reduceKernel is the one for the type of an operation's rows and for the way in
// which they are added up.
func reduceKernel(flags uint32) int {
	switch wide, runs := flags&flagWide != 0, flags&flagPreReduce != 0; {
	case runs && wide:
		return kernelReduceRunsWide
	case runs:
		return kernelReduceRuns
	case wide:
		return kernelReduceWide
	}
	return kernelReduce
}

// warpThreads run together. leastThreads of a block: one for each rank.
const (
	warpThreads  = 32
	leastThreads = (MaxRanks + warpThreads - 1) / warpThreads * warpThreads
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
