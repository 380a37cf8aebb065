package main

// #include "internal.h"
import "C"

import "github.com/moewire/moewire/core/node"

//export mwiBufferCounters
func mwiBufferCounters(id uint64, out *C.mw_counters_t) C.mw_status_t {
	return observe(id, func(e node.Observed) error {
		c := e.Counters()
		out.num_ranks = C.uint32_t(e.NumRanks())
		out.num_dispatches, out.num_combines = C.uint64_t(c.NumDispatches), C.uint64_t(c.NumCombines)
		out.num_rows_sent, out.num_rows_received = C.uint64_t(c.NumRowsSent), C.uint64_t(c.NumRowsReceived)
		out.num_rows_reduced = C.uint64_t(c.NumRowsReduced)
		out.num_bytes_placed, out.num_bytes_reduced = C.uint64_t(c.NumBytesPlaced), C.uint64_t(c.NumBytesReduced)
		out.num_bytes_copied, out.slab_bytes = C.uint64_t(c.NumBytesCopied), C.uint64_t(c.SlabBytes)
		out.wait_ns = C.uint64_t(c.Wait)
		for r := range c.NumRowsSentTo {
			out.num_rows_sent_to[r] = C.uint64_t(c.NumRowsSentTo[r])
			out.wait_ns_for[r] = C.uint64_t(c.WaitFor[r])
		}
		return nil
	})
}
