package store

import (
	"encoding/hex"
	"sync/atomic"
)

// counters are those of a store.
type counters struct {
	puts, exists, conflicts, full, wouldBlock, deletes atomic.Uint64
	evictedCold, evictedOrphans, reclaimed, moved      atomic.Uint64
	spoiled, readErrors, writeErrors, flushes          atomic.Uint64
}

// Stats are the counts of one moment, and since the store was opened.
type Stats struct {
	CapacityBytes     int64            `json:"capacity_bytes"` // live, dead and free bytes
	SegmentBytes      int64            `json:"segment_bytes"`
	LiveBytes         int64            `json:"live_bytes"` // of records that are blocks
	DeadBytes         int64            `json:"dead_bytes"` // of those that were
	FreeBytes         int64            `json:"free_bytes"`
	IndexBytes        int64            `json:"index_bytes"`
	NumBlocks         int              `json:"num_blocks"`
	Puts              uint64           `json:"puts"`
	Exists            uint64           `json:"exists"`
	Conflicts         uint64           `json:"conflicts"`
	Full              uint64           `json:"full"`
	WouldBlock        uint64           `json:"would_block"`
	Deletes           uint64           `json:"deletes"`
	EvictedCold       uint64           `json:"evicted_cold"`
	EvictedOrphans    uint64           `json:"evicted_orphans"`
	SegmentsReclaimed uint64           `json:"segments_reclaimed"`
	MovedBytes        uint64           `json:"moved_bytes"`
	Spoiled           uint64           `json:"spoiled"` // blocks that were dropped because a bit was wrong
	ReadErrors        uint64           `json:"read_errors"`
	WriteErrors       uint64           `json:"write_errors"`
	Flushes           uint64           `json:"flushes"`
	Namespaces        []NamespaceStats `json:"namespaces"`
}

// NamespaceStats are those of one namespace.
type NamespaceStats struct {
	Digest string `json:"digest"`
	Label  string `json:"label"`
	Blocks int64  `json:"blocks"`
	Bytes  int64  `json:"bytes"`
	Hits   uint64 `json:"hits"`
	Misses uint64 `json:"misses"`
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		CapacityBytes: s.capacity(), SegmentBytes: s.medium.SegmentBytes(),
		IndexBytes: s.index.SizeBytes(), NumBlocks: s.index.Len(),
		Puts: c.puts.Load(), Exists: c.exists.Load(), Conflicts: c.conflicts.Load(),
		Full: c.full.Load(), WouldBlock: c.wouldBlock.Load(), Deletes: c.deletes.Load(),
		EvictedCold: c.evictedCold.Load(), EvictedOrphans: c.evictedOrphans.Load(),
		SegmentsReclaimed: c.reclaimed.Load(), MovedBytes: c.moved.Load(), Spoiled: c.spoiled.Load(),
		ReadErrors: c.readErrors.Load(), WriteErrors: c.writeErrors.Load(), Flushes: c.flushes.Load(),
	}
	s.bytes(&st)
	s.names.mu.RLock()
	defer s.names.mu.RUnlock()
	for _, n := range s.names.all {
		st.Namespaces = append(st.Namespaces, NamespaceStats{
			Digest: hex.EncodeToString(n.digest[:8]), Label: n.label,
			Blocks: n.blocks.Load(), Bytes: n.bytes.Load(), Hits: n.hits.Load(), Misses: n.misses.Load(),
		})
	}
	return st
}

// bytes counts what segments hold. Records that come or go meanwhile may count as dead.
func (s *Store) bytes(st *Stats) {
	s.mu.Lock()
	placed := int64(0)
	for i := range s.segments {
		if g := &s.segments[i]; g.hasRecords() {
			placed += g.next
		}
	}
	s.mu.Unlock()
	st.LiveBytes = s.live.Load()
	st.DeadBytes = max(0, placed-st.LiveBytes)
	st.FreeBytes = st.CapacityBytes - st.LiveBytes - st.DeadBytes
}

// Usage counts the blocks that a namespace has now, and their bytes without keys and headers; zeros for a number that Namespace
// has not returned. A block that is moved counts once all the while.
func (s *Store) Usage(ns NS) (blocks, bytes int64) {
	n := s.names.of(ns)
	if n == nil {
		return 0, 0
	}
	return n.blocks.Load(), n.bytes.Load()
}
