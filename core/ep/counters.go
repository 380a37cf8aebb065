package ep

import "time"

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
