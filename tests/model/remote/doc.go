// Package remote explores the protocol of core/ep/cpu between ranks that are all remote
// to one another, for small numbers of ranks, slots, operations and messages:
// docs/model.md says what it shows, and what not.
//
// Only the rank itself changes its memory, and always under its Buffer.mu. So a step
// here is as long as one of core/ep/cpu under that lock. What interleaves is messages, and
// what ranks know of the member set. Change both together:
//
//	model               core/ep/cpu
//	room, post          lease, post
//	receive             receive, takeMessage
//	takeRows, goneOn    takeRows, goneOn
//	fanOut, finishRows  reserveOffsets, storeRows; finishRows
//	takeControlWords    takeControlWords, missesOutputs, takeDone
//	takeOutputs         takeOutputs
//	flush               flush
//	sendOutputs         sendOutputs
//	sendControlWords    sendControlWords
//	sendRows            leaseRemote, sendRemote
//	reopen, open        reopen, clean, openSlot
//	settleAt            settleAt, settleRemote
//	assign              startDispatch, assign
//	stepDispatch        stepDispatch, countArrivals, received
//	cancel, release     Pending.Cancel, releaseAs
//	stepCombine         stepCombine: readers, publishOutputs, outputsReady, reduce
//	fence               fence, blameStraggler: what membership.Expel asks for, agreed on
//	learn               the page of the rank's host shows the next set
//	fenced, stop        expelled, endAll
//	messagesDrained, leave  messagesDrained, leaveFor
//	rendezvous, install a rendezvous; Install
package remote
