package store

import (
	"encoding/hex"
	"sync/atomic"
)

// counters are those of a store.
type counters struct {
	puts, exists, conflicts, full, wouldBlock, deletes atomic.Uint64
	evictedCold, evictedOrphans, reclaimed, moved      atomic.Uint64
	evictedQuota, evictedDoubted, overQuota            atomic.Uint64
	spoiled, readErrors, writeErrors, flushes          atomic.Uint64
	damaged, scanned                                   atomic.Uint64
}

// MaxStatsNamespaces bounds the namespaces that Stats lists: those with the lowest numbers. One more entry adds up the
// others, and what was asked of forgotten ones.
const MaxStatsNamespaces = 63

// maxLabelBytes bounds what Stats shows of a namespace's label.
const maxLabelBytes = 256

// Stats are counts: at one moment, or of all the time since the store was opened. The tags metric and help are those of package metrics.
type Stats struct {
	CapacityBytes int64 `json:"capacity_bytes" metric:"capacity_bytes" help:"Room for records: live, dead and free bytes."`
	SegmentBytes  int64 `json:"segment_bytes" metric:"segment_bytes" help:"Bytes of a segment."`
	LiveBytes     int64 `json:"live_bytes" metric:"bytes,state=live" help:"Bytes of the capacity; live: records of blocks."`
	DeadBytes     int64 `json:"dead_bytes" metric:"bytes,state=dead" help:"Records that were blocks, or are not yet."`
	FreeBytes     int64 `json:"free_bytes" metric:"bytes,state=free" help:"Bytes without a record."`
	NoRoomBytes   int64 `json:"no_room_bytes" metric:"no_room_bytes" help:"Of the free bytes: segments that the disk has no room for."`
	ReservedBytes int64 `json:"reserved_bytes" metric:"reserved_bytes" help:"Blocks that are being written; in memory a part of the dead bytes."`
	IndexBytes    int64 `json:"index_bytes" metric:"index_bytes" help:"Memory of the index."`
	NumBlocks     int   `json:"num_blocks" metric:"blocks" help:"Blocks that there are."`

	Puts       uint64 `json:"puts" metric:"stored_blocks_total" help:"Blocks that were stored."`
	Exists     uint64 `json:"exists" metric:"existing_puts_total" help:"Puts of a block that was there already."`
	Conflicts  uint64 `json:"conflicts" metric:"conflicts_total" help:"Puts of another block than that of the key."`
	Full       uint64 `json:"full" metric:"full_total" help:"Puts for which there was no room."`
	OverQuota  uint64 `json:"over_quota" metric:"over_quota_total" help:"Puts for which a quota had no room beside what is pinned or being written."`
	WouldBlock uint64 `json:"would_block" metric:"staging_full_total" help:"Puts to files while as much was being written as may be."`
	Deletes    uint64 `json:"deletes" metric:"deleted_blocks_total" help:"Blocks that clients deleted."`

	EvictedCold       uint64 `json:"evicted_cold" metric:"evicted_blocks_total,cause=cold" help:"Blocks that were evicted; cold: they were not used for longest."`
	EvictedOrphans    uint64 `json:"evicted_orphans" metric:"evicted_blocks_total,cause=orphan" help:"Without the block before them in their chain."`
	EvictedQuota      uint64 `json:"evicted_quota" metric:"evicted_blocks_total,cause=quota" help:"The oldest ones of a salt, to keep its quota."`
	EvictedDoubted    uint64 `json:"evicted_doubted" metric:"evicted_blocks_total,cause=doubted" help:"That a flush which failed may have lost."`
	SegmentsReclaimed uint64 `json:"segments_reclaimed" metric:"reclaimed_segments_total" help:"Segments that were emptied to make room."`
	MovedBytes        uint64 `json:"moved_bytes" metric:"moved_bytes_total" help:"Bytes that were written again when their segment was emptied."`

	Spoiled     uint64 `json:"spoiled" metric:"spoiled_blocks_total" help:"Damaged blocks that were dropped, those of readers among them."`
	Damaged     uint64 `json:"damaged_segments" metric:"damaged_segments_total" help:"Segments whose first page was damaged when the store was opened: their blocks are lost."`
	Scanned     uint64 `json:"scanned_segments" metric:"scanned_segments_total" help:"Segments without a whole footer, whose records were looked for when the store was opened."`
	ReadErrors  uint64 `json:"read_errors" metric:"storage_errors_total,op=read" help:"Calls of the storage that failed; read: those that read, also when it was opened."`
	WriteErrors uint64 `json:"write_errors" metric:"storage_errors_total,op=write" help:"Those that write or flush."`
	Flushes     uint64 `json:"flushes" metric:"flushes_total" help:"Flushes to the disk."`

	Namespaces []NamespaceStats `json:"namespaces"`
}

// NamespaceStats are those of one namespace, or of all that Stats does not list: the "others" without a digest.
type NamespaceStats struct {
	Digest string `json:"digest" label:"digest"`
	Label  string `json:"label" label:"namespace"`
	Blocks int64  `json:"blocks" metric:"namespace_blocks" help:"Blocks of a namespace."`
	Bytes  int64  `json:"bytes" metric:"namespace_bytes" help:"Bytes of its blocks."`
	Hits   uint64 `json:"hits" metric:"namespace_hits_total" help:"Keys of its gets and lookups that were found."`
	Misses uint64 `json:"misses" metric:"namespace_misses_total" help:"Keys of its gets and lookups that were not found."`

	UsedBytes      int64  `json:"used_bytes" metric:"namespace_used_bytes" help:"What its blocks take, with headers and keys."`
	QuotaBytes     int64  `json:"quota_bytes" metric:"namespace_quota_bytes" help:"What all namespaces of its salt may take together; 0: no bound."`
	QuotaUsedBytes int64  `json:"quota_used_bytes" metric:"namespace_quota_used_bytes" help:"What they take of it, with blocks that are being written."`
	OverQuota      uint64 `json:"over_quota" metric:"namespace_over_quota_total" help:"Its puts that were refused by quota."`
	EvictedQuota   uint64 `json:"evicted_quota" metric:"namespace_quota_evicted_blocks_total" help:"Blocks of its salt that were evicted for its puts."`
}

// Stats returns the counts.
func (s *Store) Stats() Stats {
	c := &s.counts
	st := Stats{
		CapacityBytes: s.capacity(), SegmentBytes: s.medium.SegmentBytes(), ReservedBytes: s.reserved.Load(),
		IndexBytes: s.index.SizeBytes(), NumBlocks: s.index.Len(),
		Puts: c.puts.Load(), Exists: c.exists.Load(), Conflicts: c.conflicts.Load(),
		Full: c.full.Load(), WouldBlock: c.wouldBlock.Load(), Deletes: c.deletes.Load(),
		EvictedQuota: c.evictedQuota.Load(), EvictedDoubted: c.evictedDoubted.Load(), OverQuota: c.overQuota.Load(), EvictedCold: c.evictedCold.Load(), EvictedOrphans: c.evictedOrphans.Load(),
		SegmentsReclaimed: c.reclaimed.Load(), MovedBytes: c.moved.Load(), Spoiled: c.spoiled.Load(),
		Damaged: c.damaged.Load(), Scanned: c.scanned.Load(),
		ReadErrors: c.readErrors.Load(), WriteErrors: c.writeErrors.Load(), Flushes: c.flushes.Load(),
		Namespaces: s.names.stats(),
	}
	s.bytes(&st)
	return st
}

// stats lists namespaces. A namespace is listed or not as long as it is there, and those that were forgotten count among the
// others, so that counts only rise.
func (n *names) stats() []NamespaceStats {
	n.mu.RLock()
	defer n.mu.RUnlock()
	var list []NamespaceStats
	others := NamespaceStats{Label: "others"}
	others.count(&n.gone)
	isEmpty := others == NamespaceStats{Label: "others"}
	for i, ns := range n.all {
		switch {
		case ns == nil:
		case i < MaxStatsNamespaces:
			list = append(list, NamespaceStats{
				Digest: hex.EncodeToString(ns.digest[:8]), Label: ns.label[:min(len(ns.label), maxLabelBytes)],
			})
			at := &list[len(list)-1]
			at.add(ns)
			at.QuotaBytes, at.QuotaUsedBytes = ns.tenant.now()
		default:
			others.add(ns)
			isEmpty = false
		}
	}
	if !isEmpty {
		list = append(list, others)
	}
	return list
}

func (s *NamespaceStats) add(ns *namespace) {
	s.Blocks += ns.blocks.Load()
	s.Bytes += ns.bytes.Load()
	s.UsedBytes += ns.records.Load()
	s.count(&ns.requestCounts)
}

func (s *NamespaceStats) count(t *requestCounts) {
	s.Hits += t.hits.Load()
	s.Misses += t.misses.Load()
	s.OverQuota += t.overQuota.Load()
	s.EvictedQuota += t.evictedFor.Load()
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
	st.NoRoomBytes = int64(s.numNoRoom) * st.SegmentBytes
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
