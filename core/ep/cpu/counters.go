package cpu

import (
	"sync/atomic"
	"time"

	"github.com/moewire/moewire/core/ep"
)

// counters are written under Buffer.mu, except the waiting times.
type counters struct {
	dispatches, combines                   uint64
	plansKept                              uint64 // dispatches that needed no new plan
	rowsReceived, rowsReduced              uint64
	bytesPlaced, bytesReduced, bytesCopied uint64
	slabBytes                              uint64
	messages, bytesRemote, dropped         uint64
	violations                             uint64
	rowsTo                                 []uint64
	wait                                   []atomic.Int64 // ns, by rank
}

// Counters returns the totals; it may be called at any time.
func (b *Buffer) Counters() ep.Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.count
	out := ep.Counters{
		NumDispatches: c.dispatches, NumCombines: c.combines,
		NumRowsReceived: c.rowsReceived, NumRowsReduced: c.rowsReduced,
		NumBytesPlaced: c.bytesPlaced, NumBytesReduced: c.bytesReduced, NumBytesCopied: c.bytesCopied,
		NumMessagesSent: c.messages, NumMessageBytesSent: c.bytesRemote, NumMessagesDropped: c.dropped,
		NumViolations: c.violations + b.word.Repaired(),
		SlabBytes:     c.slabBytes, NumRowsSentTo: append([]uint64(nil), c.rowsTo...),
		WaitFor: make([]time.Duration, len(c.wait)),
	}
	for r := range c.wait {
		out.WaitFor[r] = time.Duration(c.wait[r].Load())
		out.Wait += out.WaitFor[r]
		out.NumRowsSent += c.rowsTo[r]
	}
	return out
}
