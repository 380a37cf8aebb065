// Package telemetry is what a rank records of its operations: totals, histograms
// and a ring of the latest operations. It lies in memory that its peers and other
// processes of the same user can read while the rank runs, or after it has stopped.
//
// One process writes, under one lock; another goroutine of it writes what is seen of
// remote ranks. Everything is words, stored atomically, so a reader sees each
// number whole. A reader checks a record by its sequence number, which is zero while
// the record is being written.
//
// The area is, in bytes:
//
//	     0   header, totals and histograms
//	  8192   rows received, per local expert
//	 73728   ring of records
//	204800   remote ranks, by number
package telemetry
