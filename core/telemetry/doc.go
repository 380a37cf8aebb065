// Package telemetry is what a rank records of its operations, in memory that
// its peers and other processes of the same user can read while it runs, or
// after it has stopped: totals, histograms and a ring of the latest operations.
//
// One process writes, under one lock; what is seen of remote ranks, on another
// goroutine. Everything is words, stored atomically, so a reader sees each
// number whole; a record is read by its sequence number, which is zero while it
// is being written.
//
// The area is, in bytes:
//
//	     0   header, totals and histograms
//	  8192   rows received, per local expert
//	 73728   ring of records
//	204800   remote ranks, by number
package telemetry
