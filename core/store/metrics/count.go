// Package metrics counts what a server does, and writes the counts in the Prometheus text format.
//
// The table of all numbers is made of struct fields and their tags:
//
//	Hits Counter `json:"hits" metric:"hits_total" help:"Keys of gets that were found."`
//	Cold uint64  `json:"cold" metric:"evicted_blocks_total,cause=cold" help:"..."`
//	Codes map[string]uint64 `json:"codes" metric:"requests_total,code" help:"..."` // a sample per key
//
// json names a number in the statistics, metric in the text, help says what it is. So the statistics, the text and the
// table of the documentation (Rows) have one source.
package metrics

import (
	"math/bits"
	"strconv"
	"sync/atomic"
	"time"
)

// Counter is a count that only rises. The zero value is ready; safe for concurrent use.
type Counter struct{ atomic.Uint64 }

// MarshalJSON writes the number.
func (c *Counter) MarshalJSON() ([]byte, error) { return strconv.AppendUint(nil, c.Load(), 10), nil }

// NumBuckets is how many buckets a histogram has: the last one has all that took 2^38 ns, 275 s, or longer.
const NumBuckets = 40

// Histogram counts times. Bucket i has those of less than 2^i ns and not less than 2^(i-1). The zero value is ready; safe
// for concurrent use. Observing takes no lock and allocates nothing.
type Histogram struct {
	buckets [NumBuckets]atomic.Uint64
	sum     atomic.Uint64
}

// Observe counts a time; a negative one is 0.
func (h *Histogram) Observe(d time.Duration) {
	ns := uint64(max(0, d))
	h.buckets[min(bits.Len64(ns), NumBuckets-1)].Add(1)
	h.sum.Add(ns)
}

// Latency is what a histogram has counted.
type Latency struct {
	Count   uint64             `json:"count"`
	SumNs   uint64             `json:"sum_ns"`
	Buckets [NumBuckets]uint64 `json:"time_histogram"`
}

// Now copies a histogram. The count is that of the buckets; times that are observed meanwhile may be missing in either.
func (h *Histogram) Now() (l Latency) {
	l.SumNs = h.sum.Load()
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
		l.Count += l.Buckets[i]
	}
	return l
}
