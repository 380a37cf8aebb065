package ep

import (
	"sync/atomic"
	"time"
)

// Counters are totals since the buffer was made.
type Counters struct {
	NumDispatches, NumCombines                      uint64
	NumRowsSent, NumRowsReceived, NumRowsReduced    uint64
	NumBytesPlaced, NumBytesReduced, NumBytesCopied uint64
	SlabBytes                                       uint64
	// What went to ranks on other hosts, and messages from them that no rank can have sent.
	NumMessagesSent, NumMessageBytesSent, NumMessagesDropped uint64
	// NumViolations counts ranks in the memory of which this rank has found a word that no
	// rank can have stored, itself included. It also counts repairs of the members page.
	NumViolations uint64
	Wait          time.Duration
	NumRowsSentTo []uint64
	WaitFor       []time.Duration
}

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
func (b *Buffer) Counters() Counters {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &b.count
	out := Counters{
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
