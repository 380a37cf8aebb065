//go:build linux

package sys

import "sync/atomic"

var openFDs, leakedFDs, mappings, mappedBytes atomic.Int64

// Counts says what this package's owners hold in this process.
type Counts struct {
	// OpenFDs is the number of descriptors not yet closed.
	OpenFDs int64
	// LeakedFDs is the number of descriptors with an owner that was garbage
	// collected before it was closed: always a bug.
	LeakedFDs int64
	// Mappings and MappedBytes count the mappings not yet unmapped.
	Mappings    int64
	MappedBytes int64
}

// Stats reads the counters, each by itself.
func Stats() Counts {
	return Counts{
		OpenFDs:     openFDs.Load(),
		LeakedFDs:   leakedFDs.Load(),
		Mappings:    mappings.Load(),
		MappedBytes: mappedBytes.Load(),
	}
}
