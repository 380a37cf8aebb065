package fifo

import (
	"testing"

	"github.com/moewire/moewire/core/device/cuda/cudatest"
)

// TestWordsAreThoseOfTheKernels has a C++ compiler say where everything is.
func TestWordsAreThoseOfTheKernels(t *testing.T) {
	cudatest.CheckHeader(t, "fifo.cuh", map[string]int64{
		"offsetof(mw_fifo_words, taken)": 8 * wordTaken, "offsetof(mw_fifo_words, ended)": 8 * wordEnded,
		"sizeof(mw_fifo_words)": 8 * headWords, "sizeof(mw_descriptor)": 8 * entryWords,
		"offsetof(mw_descriptor, seq)": 8 * entrySeq, "offsetof(mw_descriptor, what)": 8 * entryWhat,
		"offsetof(mw_descriptor, bytes)": 8 * entryBytes, "offsetof(mw_descriptor, number)": 8 * entryNumber,
	})
}
